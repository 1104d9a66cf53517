// Package doctor says what a host can do for an arm, and for each lack what to
// do about it, before anybody waits for a run that cannot work.
//
// Always holds: what is said was read or tried now, on this host; a return code
// alone proves nothing, so a probe looks at what it did; what could not be
// learnt is unknown and never fine; a probe leaves nothing behind. Every check is
// a function of a [Host], so that each cause is planted in a test without
// touching the host.
package doctor

import (
	"context"
	"fmt"
	"slices"

	"github.com/drumsbench/drumsbench/arms/drums"
	"github.com/drumsbench/drumsbench/arms/fake"
	"github.com/drumsbench/drumsbench/arms/oci"
	"github.com/drumsbench/drumsbench/arms/qemu"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Severities of findings.
const (
	// OK: as it should be.
	OK = "ok"
	// Warn: a run works, and something is slower, less exact or not possible.
	Warn = "warn"
	// Lack: without it the arm does not run here.
	Lack = "lack"
	// Unknown: the arm needs it, and it could not be learnt.
	Unknown = "unknown"
)

// check looks at one part of the host.
type check struct {
	// subject is what the findings are about where the check itself cannot be made.
	subject string
	// probes says that it tries something that only root may do.
	probes bool
	run    func(ctx context.Context, h *Host) []bench.HostFinding
}

// slots are the checks for arms whose slots are process trees on this kernel, in
// the order in which a person would mend the host.
var slots = []check{
	{"root", false, root},
	{"capabilities", false, capabilities},
	{"namespaces", false, namespaces},
	{"confinement", false, confinement},
	{"tool-config", false, criuConfig},
	{"cue-config", false, cueConfig},
	{"tools", false, tools},
	{"criu", true, criuTool},
	{"criu-kernel", false, criuKernel},
	{"cgroups", false, controllers},
	{"cgroup2", true, ownership},
	{"state", false, stateDirectory},
	{"space", false, space},
	{"overlayfs", true, overlayfs},
	{"loop", true, loop},
	{"fuse", true, fuse},
	{"nbd", false, nbd},
	{"kvm", true, kvm},
	{"hugepages", false, hugepages},
	{"ksm", false, ksm},
	{"swap", false, swap},
	{"leftovers", false, leftovers},
	{"strays", false, strays},
}

// checks of each arm.
var checks = map[string][]check{
	drums.Kind: slots,
	oci.Kind:   append([]check{{"runc", false, runcTool}, {"runc-cgroups", false, runcControllers}, {"systemd", false, systemdDriver}}, slots...),
	qemu.Kind:  machines,
	fake.Kind: {
		{"cue-config", false, cueConfig},
		{"state", false, stateDirectory},
		{"space", false, space},
		{"leftovers", false, leftovers},
	},
}

// Kinds are the arms that can be asked about, sorted.
func Kinds() []string {
	var kinds []string
	for kind := range checks {
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	return kinds
}

// Diagnose makes every check of an arm. Its verdict is lack where any finding is
// one, else unknown where any is, else ok.
func Diagnose(ctx context.Context, h *Host, kind string) (bench.ArmHealth, error) {
	list, ok := checks[kind]
	if !ok {
		return bench.ArmHealth{}, &engine.Error{Op: "examine host", Err: fmt.Errorf("%w: no arm of kind %q", engine.ErrUsage, kind)}
	}
	health := bench.ArmHealth{Arm: kind, Verdict: OK, Findings: []bench.HostFinding{}}
	uid, err := h.uid()
	for _, c := range list {
		var found []bench.HostFinding
		switch {
		case ctx.Err() != nil:
			return bench.ArmHealth{}, &engine.Error{Op: "examine host", Err: context.Cause(ctx)}
		case c.probes && (err != nil || uid != 0):
			found = one(Unknown, c.subject, "only root can try it", "run this as root")
		default:
			found = c.run(ctx, h)
		}
		health.Findings = append(health.Findings, found...)
	}
	for _, f := range health.Findings {
		if f.Severity == Lack || f.Severity == Unknown && health.Verdict == OK {
			health.Verdict = f.Severity
		}
	}
	return health, nil
}

// one is a list of one finding.
func one(severity, subject, text, remedy string) []bench.HostFinding {
	return []bench.HostFinding{{Subject: bench.Name(subject), Severity: severity, Text: text, Remedy: remedy}}
}

func fine(subject, format string, args ...any) []bench.HostFinding {
	return one(OK, subject, fmt.Sprintf(format, args...), "")
}

// unread is a finding about something that could not be read.
func unread(severity, subject string, err error) []bench.HostFinding {
	return one(severity, subject, "cannot be learnt: "+err.Error(), "make it readable: mount /proc and /sys, and run this as root")
}
