package doctor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/oci"
	"github.com/drumsbench/drumsbench/arms/qemu"
	"github.com/drumsbench/drumsbench/arms/sweep"
	"github.com/drumsbench/drumsbench/arms/systemd"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// This is the host that we run on, with a state directory.
func This(state string) *Host {
	var uts unix.Utsname
	_ = unix.Uname(&uts) // it fails for a bad address only
	return &Host{
		FS: os.DirFS("/"), Env: os.Environ(), State: state, Machine: unix.ByteSliceToString(uts.Machine[:]),
		Probes: Probes{
			Tool:    func(ctx context.Context) (criu.Tool, error) { return criu.Locate(ctx, state) },
			Runc:    func(ctx context.Context) (oci.Tool, error) { return oci.Locate(ctx, state) },
			Systemd: systemd.Manager{}.Version,
			QEMU:    func(ctx context.Context) (qemu.Tool, error) { return qemu.Locate(ctx, "") },
			Accelerator: func(ctx context.Context, t qemu.Tool, accel string) engine.Reading[string] {
				return t.Accelerator(ctx, accel)
			},
			Kernel: func(ctx context.Context, t qemu.Tool, accel string) (bool, error) {
				kernel := qemu.Kernel(state)
				if kernel == "" {
					return false, nil
				}
				return true, t.Boots(ctx, accel, kernel)
			}, Tun: qemu.ProbeLink,
			Check:   checkTool,
			Version: version,
			Find:    find,
			Group:   probeGroup, PrivateGroups: probePrivateGroups,
			Overlay: probeOverlay, Loop: probeLoop, Fuse: probeFuse, KVM: probeKVM,
			Write: probeWrite, Space: readSpace, Runs: readRuns,
		},
	}
}

// prefix of everything that a probe makes.
const prefix = "drums-doctor-"

// inTemporary calls f with an empty directory below dir and removes it.
func inTemporary(dir string, f func(dir string) error) error {
	temporary, err := os.MkdirTemp(dir, prefix)
	if err != nil {
		return err
	}
	return errors.Join(f(temporary), os.RemoveAll(temporary))
}

func checkTool(ctx context.Context, tool criu.Tool) error {
	return inTemporary("", func(dir string) error {
		err := tool.Check(ctx, dir)
		if err == nil {
			return nil
		}
		// The log has the reason; it is about to be removed.
		if said := lastErrors(filepath.Join(dir, "check.log")); said != "" {
			err = fmt.Errorf("%w: %s", err, said)
		}
		var e *engine.Error
		if errors.As(err, &e) {
			e.Log = ""
		}
		return err
	})
}

// lastErrors are the last two errors of a log of CRIU's.
func lastErrors(name string) string {
	data, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	var lines []string
	for line := range strings.Lines(string(data)) {
		if _, said, ok := strings.Cut(line, "Error ("); ok {
			lines = append(lines, "("+strings.TrimSpace(said))
		}
	}
	return strings.Join(lines[max(0, len(lines)-2):], "; ")
}

// version asks a program that may be too old for anything but --version.
func version(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Env = criu.Env()
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", path, err)
	}
	for line := range strings.Lines(string(out)) {
		if v, ok := strings.CutPrefix(line, "Version:"); ok {
			return strings.TrimSpace(v), nil
		}
	}
	return "", fmt.Errorf("%s --version says no version", path)
}

func find(name string, dirs []string) (string, error) {
	for _, dir := range dirs {
		if !filepath.IsAbs(dir) {
			continue
		}
		path, err := exec.LookPath(filepath.Join(dir, name))
		if err == nil {
			return path, nil
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, exec.ErrNotFound) && !errors.Is(err, fs.ErrPermission) {
			return "", err
		}
	}
	return "", fmt.Errorf("find %s: %w", name, fs.ErrNotExist)
}

func probeWrite(dir string) error {
	return inTemporary(dir, func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "file"), []byte("drums\n"), 0o600)
	})
}

func readSpace(dir string) (Space, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return Space{}, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	// btrfs and others make inodes as they are needed and say 0 of 0.
	return Space{Bytes: s.Bavail * uint64(s.Bsize), Files: s.Ffree, Unlimited: s.Files == 0}, nil
}

// readRuns looks at the ledgers two and three folders below runs, as the run and demo commands lay them out.
func readRuns(state string) ([]Run, error) {
	top := filepath.Join(state, "runs")
	entries, err := os.ReadDir(top)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var runs []Run
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		dirs, err := sweep.Runs(filepath.Join(top, e.Name()))
		if err != nil {
			return nil, err
		}
		for _, dir := range dirs {
			runs = append(runs, readRun(dir))
		}
	}
	return runs, nil
}

func readRun(dir string) Run {
	r := Run{Dir: dir}
	path := filepath.Join(dir, record.LedgerFile)
	r.Claimed = claimed(path)
	release, err := record.HoldToRead(dir)
	if errors.Is(err, record.ErrRunning) {
		r.Running = true
		return r
	}
	if err != nil {
		r.Err = err
		return r
	}
	defer func() { _ = release() }()
	if r.Owned, _, r.Err = record.ReadLedger(path); errors.Is(r.Err, fs.ErrNotExist) {
		r.Err = nil // it ended before it made one, and before it made anything else
	}
	return r
}

// claimed are the paths of a ledger, as far as it can be read: what it names is nobody else's.
func claimed(path string) (paths []string) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, len(data)+1)
	for lines.Scan() {
		var line bench.LedgerLine
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Op == "intent" && line.Claim.Path != "" {
			paths = append(paths, line.Claim.Path)
		}
	}
	return paths
}
