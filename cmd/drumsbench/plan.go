package main

import (
	"context"

	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/planfmt"
	"github.com/drumsbench/drumsbench/steps"
)

type planCmd struct {
	Path    string   `arg:"" help:"Folder of a manifest, or its .cue file."`
	Tag     []string `short:"t" sep:"none" placeholder:"KEY=VALUE" help:"Set a field that carries @tag(KEY); may be repeated."`
	Reset   string   `enum:"restore,cold" default:"restore" help:"How a slot gets back to its start: restore or cold (default ${default})."`
	Mermaid bool     `help:"Print a Mermaid flowchart."`
}

// Help teaches the command.
func (planCmd) Help() string {
	return `Compiles the manifest and prints the plan of one arm-block: the same steps on every arm, with the
digests of plan and workload. With -o json it is the plan as a record keeps it.

Examples:

  drumsbench plan manifests/locks
  drumsbench plan --reset cold -t rollouts=2 manifests/locks
  drumsbench plan --mermaid manifests/locks > plan.mmd

Exit codes: 0 printed, 1 a mistake in the manifest, 2 wrong usage.`
}

// Run prints the plan.
func (c planCmd) Run(_ context.Context, g *globals) error {
	m, err := compile.Load(compile.Options{Path: c.Path, Tags: c.Tag})
	if err != nil {
		return err
	}
	workload, err := compile.Workload(m.Manifest)
	if err != nil {
		return err
	}
	plan, err := steps.Block(m.Manifest, workload, c.Reset)
	if err != nil {
		return err
	}
	switch {
	case c.Mermaid:
		return printText(g.Stdout, planfmt.Mermaid(plan))
	case g.json():
		return printText(g.Stdout, string(planfmt.JSON(plan))+"\n")
	}
	return printText(g.Stdout, planfmt.Text(plan))
}
