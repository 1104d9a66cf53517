//go:build !linux || elsewhere

// On other systems the program reads manifests and records, and makes none. The
// build tag elsewhere makes that program on Linux, for its tests.

package main

import (
	"errors"
	"fmt"

	"github.com/alecthomas/kong"

	"github.com/drumsbench/drumsbench/engine"
)

// hostCmd stands for a command that works on slots, images or the host.
type hostCmd struct {
	Args []string `arg:"" optional:"" help:"What the command has on a Linux host."`
}

type (
	runCmd    = hostCmd
	slotCmd   = hostCmd
	sweepCmd  = hostCmd
	doctorCmd = hostCmd
	probeCmd  = hostCmd
	imageCmd  = hostCmd
)

// errElsewhere: the command needs namespaces, mounts and processes of Linux.
var errElsewhere = errors.New("this command runs on Linux hosts")

// Help says where the command runs.
func (hostCmd) Help() string {
	return `This command runs on Linux hosts. Here drumsbench checks manifests and reads runs that were made there:
vet, plan, register, show, compare, judge, ls, review, report, verify, export, schema, version.

Exit codes: 1 always.`
}

// Run refuses.
func (hostCmd) Run(c *kong.Context) error { return elsewhere(c) }

// elsewhere refuses the command that was recognised, if it is one of a host's.
func elsewhere(c *kong.Context) error {
	if c == nil || c.Selected() == nil || !c.Selected().Target.IsValid() {
		return nil
	}
	if _, is := c.Selected().Target.Interface().(hostCmd); !is {
		return nil
	}
	return &engine.Error{Op: plainCommand(c), Err: fmt.Errorf("%w: %w", engine.ErrRefused, errElsewhere), Hint: "run it on the host of the slots, and copy the folder of runs here"}
}
