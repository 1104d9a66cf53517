package main

import (
	"context"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/planfmt"
	"github.com/drumsbench/drumsbench/steps"
)

type planCmd struct {
	Path     string   `arg:"" help:"Folder of a manifest, or its .cue file."`
	Tag      []string `short:"t" sep:"none" placeholder:"KEY=VALUE" help:"Set a field that carries @tag(KEY); may be repeated."`
	Reset    string   `enum:"restore,cold" default:"restore" help:"How a slot gets back to its start: restore or cold (default ${default})."`
	Mermaid  bool     `xor:"form" help:"Print a Mermaid flowchart."`
	Overview bool     `xor:"form" help:"Print its shape as a Mermaid flowchart: one rollout, gates together."`
	Diff     string   `xor:"form" placeholder:"OTHER" help:"Print what the plan of manifest OTHER (A) and this one's (B) differ in."`
}

// Help teaches the command.
func (planCmd) Help() string {
	return `Compiles the manifest and prints the plan of one arm-block: the same steps on every arm, with the
digests of plan and workload. With -o json it is the plan as a record keeps it.

With --diff it prints what the plans of two manifests differ in: digests, steps that only one has, and
each parameter by its path. Tags are set in both.

Examples:

  drumsbench plan manifests/locks
  drumsbench plan --reset cold -t rollouts=2 manifests/locks
  drumsbench plan --mermaid manifests/locks > plan.mmd
  drumsbench plan --diff manifests/locks manifests/rename

Exit codes: 0 printed, or nothing differs; 1 a mistake in the manifest, or the plans differ; 2 wrong usage.`
}

// Run prints the plan.
func (c planCmd) Run(_ context.Context, g *globals) error {
	plan, err := c.compile(c.Path)
	if err != nil {
		return err
	}
	switch {
	case c.Diff != "":
		return c.diff(g, plan)
	case c.Mermaid:
		return printText(g.Stdout, planfmt.Mermaid(plan))
	case c.Overview:
		return printText(g.Stdout, planfmt.Overview(plan))
	case g.json():
		return printText(g.Stdout, string(planfmt.JSON(plan))+"\n")
	}
	return printText(g.Stdout, planfmt.Text(plan))
}

func (c planCmd) compile(path string) (*engine.Plan, error) {
	m, err := compile.Load(compile.Options{Path: path, Tags: c.Tag})
	if err != nil {
		return nil, err
	}
	workload, err := compile.Workload(m.Manifest)
	if err != nil {
		return nil, err
	}
	return steps.Block(m.Manifest, workload, c.Reset)
}

// diff prints what the other manifest's plan and this one differ in.
func (c planCmd) diff(g *globals, plan *engine.Plan) error {
	other, err := c.compile(c.Diff)
	if err != nil {
		return err
	}
	d, err := planfmt.Diff(c.Diff, other, c.Path, plan)
	if err != nil {
		return &engine.Error{Op: "compare plans", Err: err}
	}
	if g.json() {
		err = printJSON(g.Stdout, d)
	} else {
		err = printText(g.Stdout, planfmt.DiffText(d))
	}
	if err != nil || planfmt.Equal(d) {
		return err
	}
	return exitCode(codeFailed)
}
