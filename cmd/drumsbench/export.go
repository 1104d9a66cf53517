package main

import (
	"context"
	"fmt"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	site "github.com/drumsbench/drumsbench/engine/report"
	"github.com/drumsbench/drumsbench/engine/sign"
)

type exportCmd struct {
	InToto bool   `required:"" help:"An in-toto statement of a test result, in a DSSE envelope."`
	Dir    string `arg:"" name:"run" help:"Directory of a run."`
	Key    string `required:"" type:"path" env:"DRUMSBENCH_KEY" placeholder:"FILE" help:"Private key that signs it: ed25519, PKCS#8 in PEM (or $$${env})."`
}

// Help teaches the command.
func (exportCmd) Help() string {
	return `Prints a run in a form that other people's tools read. With --in-toto it is a DSSE envelope of an in-toto
statement whose predicate is https://in-toto.io/attestation/test-result/v0.1: subject are the image and the
guest server, configuration the files of the run with their SHA-256, tests the steps of the plan. A run that
did not pass is FAILED, one that waits for a person included. A run that is not sound is refused.

Example:

  drumsbench export --in-toto --key me.pem runs/rename/drums-restore > rename.intoto.json

Exit codes: 0 printed, 1 the run is not sound or cannot be read, 2 wrong usage.`
}

// Run prints the envelope, whatever the format that is asked for.
func (c exportCmd) Run(_ context.Context, g *globals) error {
	if !record.IsRun(c.Dir) {
		return usage(c.Dir + ": no run directory")
	}
	key, err := sign.ReadKey(c.Key)
	if err != nil {
		return err
	}
	program, err := engineVersion()
	if err != nil {
		return err
	}
	r, none, err := site.Load(c.Dir, program.Sha256)
	if err != nil {
		return err
	}
	if none != nil {
		return &engine.Error{Op: "export run", Err: fmt.Errorf("%w: %s", engine.ErrRefused, none.Reason), Hint: "see: drumsbench verify " + c.Dir}
	}
	data, err := site.Statement(r)
	if err != nil {
		return err
	}
	e, err := key.Bytes(site.StatementMedia, data)
	if err != nil {
		return err
	}
	return printJSON(g.Stdout, e)
}
