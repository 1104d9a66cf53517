package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

const setup = "run scripts/setup: it makes a private criu below the state directory"

// criuTool finds the CRIU that the arm would use and lets it look at the kernel.
func criuTool(ctx context.Context, h *Host) []bench.HostFinding {
	tool, err := h.Tool(ctx)
	if err != nil {
		remedy := setup
		var e *engine.Error
		if errors.As(err, &e) && e.Hint != "" {
			remedy = e.Hint
		}
		if errors.Is(err, engine.ErrRefused) {
			return one(Lack, "criu", err.Error(), remedy)
		}
		return one(Unknown, "criu", "cannot be asked: "+err.Error(), remedy)
	}
	found := fine("criu", "%s (%s) at %s", tool.Version, tool.Origin, tool.Path)
	if tool.Shim != "" {
		found = append(found, one(Warn, "criu-shim", "criu runs with a shim of the tests: "+tool.Shim+"; it is a fact of every run (criu.shim)",
			"give this process CAP_SYS_RESOURCE, and run scripts/setup without DRUMSBENCH_CRIU")...)
	}
	switch err := h.Check(ctx, tool); {
	case ctx.Err() != nil:
		return append(found, one(Unknown, "criu-check", "criu check did not end: "+context.Cause(ctx).Error(), "look what holds up the host, and ask again")...)
	case err != nil:
		return append(found, one(Lack, "criu-check", "criu cannot work on this kernel: "+err.Error(),
			"use a kernel with CONFIG_CHECKPOINT_RESTORE and its companions, and give this process CAP_SYS_ADMIN, CAP_SYS_PTRACE and CAP_NET_ADMIN")...)
	}
	return append(found, fine("criu-check", "criu check finds nothing that it lacks")...)
}

// pair is a kernel and a CRIU that do not go together.
type pair struct {
	kernel  [2]int // from this one on
	criu    [2]int // before this one
	machine string // any where empty
	what    string
	source  string
}

// pairs that are known. Cases 9 and 10 of those that people reported.
var pairs = []pair{
	{[2]int{6, 13}, [2]int{4, 1}, "x86_64", "it stops while it looks at the vDSO, whose data pages the kernel splits since 6.13", "checkpoint-restore/criu issue 2532"},
	{[2]int{6, 16}, [2]int{4, 2}, "", "it cannot dump a TCP socket, of which the kernel refuses SO_PASSCRED since 6.16", "checkpoint-restore/criu issue 2705"},
}

// unfit says what is wrong with a CRIU on a kernel; empty where nothing is known.
func unfit(kernel, machine, version string) ([]string, error) {
	k, err := twoNumbers(kernel)
	if err != nil {
		return nil, fmt.Errorf("kernel release %q: %w", kernel, err)
	}
	c, err := twoNumbers(version)
	if err != nil {
		return nil, fmt.Errorf("criu version %q: %w", version, err)
	}
	var found []string
	for _, p := range pairs {
		if !before(k, p.kernel) && before(c, p.criu) && (p.machine == "" || p.machine == machine) {
			found = append(found, fmt.Sprintf("%s (%s)", p.what, p.source))
		}
	}
	return found, nil
}

// twoNumbers are the first two of a version.
func twoNumbers(version string) (n [2]int, err error) {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return n, errors.New("it has no two numbers")
	}
	for i := range n {
		digits := parts[i] // 18, or 18-rc1
		if end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
			digits = digits[:end]
		}
		if n[i], err = strconv.Atoi(digits); err != nil {
			return n, errors.New("it does not begin with two numbers")
		}
	}
	return n, nil
}

func before(a, b [2]int) bool { return a[0] < b[0] || a[0] == b[0] && a[1] < b[1] }

// criuKernel looks for pairs that do not go together: the CRIU of the state
// directory, whatever its state, and the system's own, which this arm does not
// use but others do.
func criuKernel(ctx context.Context, h *Host) []bench.HostFinding {
	kernel, err := h.read("/proc/sys/kernel/osrelease")
	if err != nil {
		return unread(Unknown, "criu-kernel", err)
	}
	var found []bench.HostFinding
	if own := h.recordedCriu(); own != "" {
		found = append(found, h.judgePair(ctx, own, kernel, Lack)...)
	}
	dirs := strings.Split(h.variable("PATH"), ":")
	system, err := h.Find("criu", append(dirs, "/usr/sbin", "/sbin"))
	if err == nil {
		found = append(found, h.judgePair(ctx, system, kernel, Warn)...)
	}
	if found == nil {
		found = fine("criu-kernel", "no criu that does not go with kernel %s", kernel)
	}
	return found
}

// judgePair is what is wrong with one program; nothing where nothing is known against it.
func (h *Host) judgePair(ctx context.Context, program, kernel, severity string) []bench.HostFinding {
	unknown := Warn
	remedy := "set DRUMSBENCH_CRIU to criu 4.2 or newer, or unset it, and run scripts/setup"
	use := ""
	if severity == Warn {
		use, remedy = ", which this arm does not use,", "nothing for this arm; for other tools put criu 4.2 or newer first in PATH"
	} else {
		unknown = Unknown
	}
	version, err := h.Version(ctx, program)
	var wrong []string
	if err == nil {
		wrong, err = unfit(kernel, h.Machine, version)
	}
	if err != nil {
		return one(unknown, "criu-kernel", fmt.Sprintf("%s%s cannot be judged: %v", program, use, err), remedy)
	}
	if len(wrong) == 0 {
		return nil
	}
	return one(severity, "criu-kernel", fmt.Sprintf("criu %s at %s%s does not go with kernel %s: %s", version, program, use, kernel, strings.Join(wrong, "; ")), remedy)
}

// recordedCriu is the program that the state directory names, good or not.
func (h *Host) recordedCriu() string {
	for _, name := range []string{"operator.json", "current/closure.json"} {
		text, err := h.read(path.Join(h.State, "criu", name))
		if err != nil {
			continue
		}
		var r struct {
			Criu struct {
				Path string `json:"path"`
			} `json:"criu"`
			Path string `json:"path"`
		}
		if json.Unmarshal([]byte(text), &r) != nil {
			return "" // finding the tool says so
		}
		if r.Criu.Path != "" {
			return r.Criu.Path
		}
		return r.Path
	}
	return ""
}

// criuConfig lists what would change a CRIU that is started the usual way.
func criuConfig(_ context.Context, h *Host) []bench.HostFinding {
	list := criu.HostConfig(h.Env, h.FS)
	if len(list) == 0 {
		return fine("tool-config", "no file or variable of the host changes criu")
	}
	var found []bench.HostFinding
	for _, item := range list {
		remedy := "move it away: a run refuses to start beside it"
		if name, _, variable := strings.Cut(item, "="); variable && !strings.HasPrefix(item, "/") {
			remedy = "unset " + name + ": a run refuses to start with it"
		}
		found = append(found, one(Lack, "tool-config", item+" changes what criu does", remedy)...)
	}
	return found
}

// refusedByCUE are the variables with which no manifest is read (engine/compile).
var refusedByCUE = []string{"CUE_EXPERIMENT", "CUE_DEBUG"}

// cueConfig looks at the variables of CUE: some change what a manifest means, the others only stock cue.
func cueConfig(_ context.Context, h *Host) []bench.HostFinding {
	var found []bench.HostFinding
	for _, name := range refusedByCUE {
		if h.variable(name) != "" {
			found = append(found, one(Lack, "cue-config", name+" is set and would change what a manifest means: none is read", "unset "+name)...)
		}
	}
	for _, e := range h.Env {
		name, value, _ := strings.Cut(e, "=")
		if strings.HasPrefix(name, "CUE_") && value != "" && name != refusedByCUE[0] && name != refusedByCUE[1] {
			found = append(found, one(Warn, "cue-config", name+" is set: stock cue heeds it, this program does not", "unset "+name+" where both should see the same")...)
		}
	}
	if found == nil {
		found = fine("cue-config", "no variable changes CUE")
	}
	return found
}
