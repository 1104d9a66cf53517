//go:build linux && !elsewhere

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/drumsbench/drumsbench/arms/doctor"
	"github.com/drumsbench/drumsbench/arms/drums"
	"github.com/drumsbench/drumsbench/arms/hostfacts"
	"github.com/drumsbench/drumsbench/arms/oci"
	"github.com/drumsbench/drumsbench/arms/qemu"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/terminal"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

type doctorCmd struct {
	Arm []string `placeholder:"KIND" help:"Look with this arm in mind; may be repeated (default: drums)."`
}

// Help teaches the command.
func (doctorCmd) Help() string {
	return `Says whether this host can run an arm: what it needs and is missing, what could not be learnt, what
works and disturbs measurements, each with its remedy. Mounts, cgroups, devices and criu are tried for
real, in a mount namespace of its own and below the state directory; nothing of it stays. As root; other
users learn a part only.

  lack     without it the arm does not run here
  unknown  the arm needs it, and it could not be learnt
  warn     the arm runs, and something is slower, less exact or not possible
  ok       as it should be

Examples:

  drumsbench doctor
  drumsbench doctor --arm drums -o json

Exit codes: 0 every arm that was asked about can run here, 1 one lacks something, 2 wrong usage, 3
something that one needs could not be learnt.`
}

// doctorDeadline bounds all that is tried on a host that does not answer.
const doctorDeadline = 2 * time.Minute

// Run examines the host.
func (c doctorCmd) Run(ctx context.Context, g *globals) error {
	kinds := c.Arm
	if len(kinds) == 0 {
		kinds = []string{drums.Kind}
	}
	for _, kind := range kinds {
		if !slices.Contains(doctor.Kinds(), kind) {
			return &engine.Error{Op: "examine host", Err: usage(fmt.Sprintf("there is no arm %q; there are %s", kind, strings.Join(doctor.Kinds(), ", ")))}
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, doctorDeadline, engine.ErrDeadline)
	defer cancel()
	host := doctor.This(g.State)
	facts := bench.HostFacts{ApiVersion: engine.APIVersion, Facts: hostfacts.Read()}
	if tool, err := host.Tool(ctx); err == nil && (slices.Contains(kinds, drums.Kind) || slices.Contains(kinds, oci.Kind)) {
		facts.Facts = append(tool.Facts(), facts.Facts...)
	}
	if runc, err := host.Runc(ctx); err == nil && slices.Contains(kinds, oci.Kind) {
		facts.Facts = append(runc.Facts(), facts.Facts...)
	}
	if tool, err := host.QEMU(ctx); err == nil && slices.Contains(kinds, qemu.Kind) {
		facts.Facts = append(tool.Facts(), facts.Facts...)
	}
	for _, kind := range kinds {
		health, err := doctor.Diagnose(ctx, host, kind)
		if err != nil {
			return err
		}
		facts.Arms = append(facts.Arms, health)
	}
	var err error
	if g.json() {
		err = printJSON(g.Stdout, facts)
	} else {
		err = printText(g.Stdout, healthText(facts.Arms))
	}
	if err != nil {
		return err
	}
	return exitCode(healthExit(facts.Arms))
}

// healthExit is 1 where any arm lacks something, else 3 where any does not know, else 0.
func healthExit(arms []bench.ArmHealth) int {
	code := codeDone
	for _, a := range arms {
		switch a.Verdict {
		case doctor.Lack:
			return codeFailed
		case doctor.Unknown:
			code = codeBlocked
		}
	}
	return code
}

// severities in the order in which they are shown.
var severities = []string{doctor.Lack, doctor.Unknown, doctor.Warn, doctor.OK}

func healthText(arms []bench.ArmHealth) string {
	said := map[string]string{
		doctor.OK: "can run on this host", doctor.Lack: "cannot run on this host", doctor.Unknown: "it is not known whether it can run on this host",
	}
	var b strings.Builder
	for _, a := range arms {
		counts := map[string]int{}
		width := 0
		for _, f := range a.Findings {
			counts[f.Severity]++
			width = max(width, len(f.Subject))
		}
		fmt.Fprintf(&b, "%s: %s", a.Arm, said[a.Verdict])
		for _, s := range severities {
			fmt.Fprintf(&b, ", %d %s", counts[s], s)
		}
		b.WriteString("\n")
		findings := slices.Clone(a.Findings)
		slices.SortStableFunc(findings, func(x, y bench.HostFinding) int {
			return cmp.Compare(slices.Index(severities, x.Severity), slices.Index(severities, y.Severity))
		})
		for _, f := range findings {
			fmt.Fprintf(&b, "  %-7s  %-*s  %s\n", f.Severity, width, f.Subject, terminal.Line(f.Text))
			if f.Remedy != "" {
				fmt.Fprintf(&b, "  %-7s  %-*s  remedy: %s\n", "", width, "", terminal.Line(f.Remedy))
			}
		}
	}
	return b.String()
}
