package doctor

import (
	"context"
	"errors"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// runcTool finds the runc that the arm would use.
func runcTool(ctx context.Context, h *Host) []bench.HostFinding {
	tool, err := h.Runc(ctx)
	if err == nil {
		return fine("runc", "%s (%s) at %s", tool.Version, tool.Origin, tool.Path)
	}
	remedy := "run scripts/setup"
	var e *engine.Error
	if errors.As(err, &e) && e.Hint != "" {
		remedy = e.Hint
	}
	if errors.Is(err, engine.ErrRefused) {
		return one(Lack, "runc", err.Error(), remedy)
	}
	return one(Unknown, "runc", "cannot be asked: "+err.Error(), remedy)
}

// runcControllers looks for the one v1 hierarchy that runc insists on and that no limit needs.
func runcControllers(_ context.Context, h *Host) []bench.HostFinding {
	groups, err := h.read("/proc/self/cgroup")
	if err != nil {
		return unread(Unknown, "runc-cgroups", err)
	}
	v1, devices := false, false
	for line := range strings.Lines(groups) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) < 3 || parts[1] == "" {
			continue
		}
		for _, name := range strings.Split(parts[1], ",") {
			v1, devices = v1 || name == "memory", devices || name == "devices"
		}
	}
	if v1 && !devices {
		return one(Lack, "runc-cgroups", "no v1 hierarchy has the devices controller, without which runc starts no container", "mount it: mount -t cgroup -o devices none /sys/fs/cgroup/devices")
	}
	return fine("runc-cgroups", "every control group that runc insists on")
}

// systemdDriver says whether systemd can make a slot's group (cgroups: "systemd").
// Without it the arm makes the groups itself, so that nothing here keeps it from running.
func systemdDriver(ctx context.Context, h *Host) []bench.HostFinding {
	const remedy = `nothing for cgroups: "cgroupfs", which is the default; "systemd" needs a host that systemd runs (/run/systemd/system), with cgroup v2 only, and systemd answering on its own socket or the system bus`
	cannot := func(why string) []bench.HostFinding {
		return one(Warn, "systemd", `cgroups: "systemd" cannot be used: `+why, remedy)
	}
	here, err := h.exists("/run/systemd/system")
	if err != nil {
		return unread(Warn, "systemd", err)
	}
	if !here {
		return cannot("systemd does not run this host")
	}
	g, err := h.hierarchies()
	if err != nil {
		return unread(Warn, "systemd", err)
	}
	if !g.unified {
		return cannot("v2 is not the only cgroup hierarchy: this host is " + g.mode())
	}
	version, err := h.Systemd(ctx)
	if err != nil {
		return cannot(err.Error())
	}
	return fine("systemd", `systemd %s answers: cgroups: "systemd" can be used`, version)
}
