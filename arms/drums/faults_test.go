package drums

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/arms/thread"
	"github.com/drumsbench/drumsbench/arms/tree"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// saboteur is the drums arm with a fault planted behind its back, once.
type saboteur struct {
	*Arm
	provisioned, restored func(pid int) error
	dumped                func(cp engine.Checkpoint) error
}

func (s *saboteur) Provision(ctx context.Context, ws *engine.Workspace, r engine.Root, p engine.Place, params bench.ProvisionParams) (engine.Slot, error) {
	got, err := s.Arm.Provision(ctx, ws, r, p, params)
	if err == nil && s.provisioned != nil {
		err = s.provisioned(got.(*slot).now.Pid)
		if err != nil {
			err = errors.Join(err, got.Release(ctx))
		}
	}
	if err != nil {
		return nil, err
	}
	return &spied{got.(*slot), s}, nil
}

func (s *saboteur) Restore(ctx context.Context, ws *engine.Workspace, r engine.Root, cp engine.Checkpoint, p engine.Place, params bench.RestoreParams) (engine.Stopped, error) {
	got, err := s.Arm.Restore(ctx, ws, r, cp, p, params)
	if err == nil && s.restored != nil {
		err = s.restored(got.(*stopped).now.Pid)
	}
	return got, err
}

type spied struct {
	*slot
	by *saboteur
}

func (s *spied) Dump(ctx context.Context, p bench.DumpParams, ref engine.GuestReference) (engine.Checkpoint, engine.Place, error) {
	cp, place, err := s.slot.Dump(ctx, p, ref)
	if err == nil && s.by.dumped != nil {
		err = s.by.dumped(cp)
	}
	return cp, place, err
}

func inside(pid int, namespaces string, command ...string) error {
	out, err := exec.Command("nsenter", append([]string{"-t", strconv.Itoa(pid), namespaces, "--"}, command...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%v: %w: %s", command, err, out)
	}
	return nil
}

// bindInto attaches a copy of a host mount below the slot's root, as a careless operator's nsenter would.
func bindInto(pid int, host, at string) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, host, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// A thread of its own, which ends: it has left its mount namespace for good.
	return thread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return err
		}
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		if err != nil {
			return err
		}
		defer ns.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
			return err
		}
		return unix.MoveMount(fd, "", unix.AT_FDCWD, "/"+at, unix.MOVE_MOUNT_F_EMPTY_PATH)
	})
}

// TestEachGateStopsItsFault plants one fault at a time into a real slot and
// requires that the gate that is for it says so, by name, that the run fails,
// that what depends on the gate is not run and that nothing is left behind.
func TestEachGateStopsItsFault(t *testing.T) {
	for name, c := range map[string]struct {
		plant    func(t *testing.T, s *saboteur, m *bench.Manifest)
		step     string
		subject  string
		verdict  bench.Verdict
		class    bench.RolloutClass
		unharmed []string // gates that the fault must not touch
	}{
		"bind of a device (case 6)": {
			plant: func(t *testing.T, s *saboteur, _ *bench.Manifest) {
				s.provisioned = func(pid int) error {
					return inside(pid, "-m", "/bin/busybox", "sh", "-c", "touch /tmp/device && busybox mount --bind /dev/tty /tmp/device")
				}
			},
			step: "base/gate-mount-contract", subject: "/tmp/device", verdict: engine.Fail,
		},
		"a file system that CRIU does not carry (case 7)": {
			plant: func(t *testing.T, s *saboteur, _ *bench.Manifest) {
				s.provisioned = func(pid int) error { return inside(pid, "-m", "/bin/busybox", "mount", "-t", "ramfs", "drums", "/mnt") }
			},
			step: "base/gate-mount-contract", subject: "/mnt", verdict: engine.Fail,
		},
		"the guest is dead after provision (case 23)": {
			plant: func(t *testing.T, s *saboteur, m *bench.Manifest) {
				m.Readiness.Deadline = "2s"
				s.provisioned = func(pid int) error {
					id, err := procfs.Identity(pid)
					if err != nil {
						return err
					}
					return procfs.Kill(t.Context(), id)
				}
			},
			step: "base/gate-limits", subject: "slot is dead", verdict: engine.VerdictUnknown,
		},
		"a variable that changes CRIU (case 29)": {
			plant: func(t *testing.T, s *saboteur, _ *bench.Manifest) { t.Setenv("CRIU_CONFIG_FILE", "/drums-none.conf") },
			step:  "base/gate-tool-config", subject: "CRIU_CONFIG_FILE=/drums-none.conf", verdict: engine.Fail,
		},
		"another guest server than the pinned one": {
			plant: func(t *testing.T, s *saboteur, m *bench.Manifest) {
				m.Guest.Server.Sha256 = bench.SHA256(strings.Repeat("ab", 32))
			},
			step: "base/gate-server", subject: "guest server", verdict: engine.Fail,
		},
		"an established connection (case 14)": {
			plant: func(t *testing.T, s *saboteur, m *bench.Manifest) {
				const hold = `import socket,os,time
l=socket.create_server(("127.0.0.1",7000)); c=socket.create_connection(("127.0.0.1",7000)); a,_=l.accept()
if os.fork()==0:
    os.setsid()
    for f in (0,1,2): os.dup2(os.open("/dev/null",os.O_RDWR),f)
    time.sleep(600)`
				m.Task.Setup = []bench.Command{{Exec: []string{"/usr/bin/python3", "-c", hold}, Timeout: "10s"}}
			},
			step: "base/gate-enclosed-enclosure", subject: "", verdict: engine.Fail,
		},
		"a lock, with locks refused (case 3)": {
			plant: func(t *testing.T, s *saboteur, _ *bench.Manifest) { s.Arm.settings.Locks = "refuse" },
			step:  "base/gate-enclosed-enclosure", subject: "", verdict: engine.Fail,
		},
		"a checkpoint's file grew (case 12)": {
			plant: func(t *testing.T, s *saboteur, _ *bench.Manifest) {
				s.dumped = func(cp engine.Checkpoint) error {
					f, err := os.OpenFile(filepath.Join(cp.Dir, tree.LayerDir, "var/lib/locks/plain"), os.O_APPEND|os.O_WRONLY, 0)
					if err != nil {
						return err
					}
					defer f.Close()
					_, err = f.WriteString("x")
					return err
				}
			},
			step: "r0/restore", subject: "layers/0/var/lib/locks/plain", verdict: engine.Fail, class: record.EnvFailure,
		},
		"a lock on a mapped file is lost (case 1)": {
			plant: func(t *testing.T, s *saboteur, _ *bench.Manifest) { s.Arm.settings.Locks = "criu" },
			step:  "r0/gate-stopped-locks", subject: "/var/lib/locks/mapped", verdict: engine.Fail, class: record.Invalid,
			unharmed: []string{"r0/gate-stopped-mounts", "r0/gate-stopped-processes", "r0/gate-stopped-state", "r0/gate-stopped-limits"},
		},
		"a mount that was not there": {
			plant: func(t *testing.T, s *saboteur, _ *bench.Manifest) {
				s.restored = func(pid int) error { return inside(pid, "-m", "/bin/busybox", "mount", "-t", "tmpfs", "drums", "/mnt") }
			},
			step: "r0/gate-stopped-mounts", subject: "/mnt", verdict: engine.Fail, class: record.Invalid,
			unharmed: []string{"r0/gate-stopped-locks", "r0/gate-stopped-processes", "r0/gate-stopped-limits"},
		},
		"a task outside its limits group (case 11)": {
			plant: func(t *testing.T, s *saboteur, _ *bench.Manifest) {
				s.restored = func(pid int) error {
					out, err := exec.Command("sh", "-c", fmt.Sprintf(`echo %d > "/sys/fs/cgroup/pids$(sed -n 's/^[0-9]*:pids://p' /proc/self/cgroup)/cgroup.procs"`, pid)).CombinedOutput()
					if err != nil {
						return fmt.Errorf("%w: %s", err, out)
					}
					return nil
				}
			},
			step: "r0/gate-stopped-limits", subject: "task", verdict: engine.Fail, class: record.Invalid,
			unharmed: []string{"r0/gate-stopped-locks", "r0/gate-stopped-processes", "r0/gate-stopped-mounts"},
		},
		"a process is gone": {
			plant: func(t *testing.T, s *saboteur, _ *bench.Manifest) {
				s.restored = func(pid int) error {
					tasks, err := procfs.Tasks(pid)
					if err != nil {
						return err
					}
					last := tasks[0]
					for _, task := range tasks {
						if task.Inner > last.Inner {
							last = task
						}
					}
					if err := unix.Kill(last.Pid, unix.SIGKILL); err != nil {
						return err
					}
					for { // a signal only begins the end
						stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", last.Pid))
						if err != nil || bytes.Contains(stat, []byte(") Z ")) {
							return nil
						}
						time.Sleep(time.Millisecond)
					}
				}
			},
			step: "r0/gate-stopped-processes", subject: "pid", verdict: engine.Fail, class: record.Invalid,
			unharmed: []string{"r0/gate-stopped-mounts", "r0/gate-stopped-limits"},
		},
		"a file differs": {
			plant: func(t *testing.T, s *saboteur, _ *bench.Manifest) {
				s.restored = func(pid int) error {
					return os.WriteFile(fmt.Sprintf("/proc/%d/root/root/stray", pid), []byte("x"), 0o600)
				}
			},
			step: "r0/gate-stopped-state", subject: "/root/stray", verdict: engine.Fail, class: record.Invalid,
			unharmed: []string{"r0/gate-stopped-locks", "r0/gate-stopped-processes", "r0/gate-stopped-mounts", "r0/gate-stopped-limits"},
		},
		"a route that was not there": {
			plant: func(t *testing.T, s *saboteur, m *bench.Manifest) {
				s.restored = func(pid int) error { return inside(pid, "-n", "ip", "route", "add", "blackhole", "10.99.0.0/24") }
			},
			step: "r0/gate-stopped-network", subject: "10.99.0.0/24", verdict: engine.Fail, class: record.Invalid,
		},
		"loopback is down after the restore (case 4)": {
			plant: func(t *testing.T, s *saboteur, m *bench.Manifest) {
				s.restored = func(pid int) error { return inside(pid, "-n", "ip", "link", "set", "lo", "down") }
			},
			step: "r0/gate-stopped-network", subject: "lo", verdict: engine.Fail, class: record.Invalid,
		},
		"the host's tmpfs in the slot": {
			plant: func(t *testing.T, s *saboteur, m *bench.Manifest) {
				shared := t.TempDir()
				if err := unix.Mount("drums-shared", shared, "tmpfs", 0, ""); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { unix.Unmount(shared, unix.MNT_DETACH) })
				s.provisioned = func(pid int) error { return bindInto(pid, shared, "mnt") }
			},
			step: "base/gate-enclosed-enclosure", subject: "/mnt", verdict: engine.Fail,
		},
		"the act touches the canary": {
			plant: func(t *testing.T, s *saboteur, m *bench.Manifest) {
				m.Task.Oracle = append(m.Task.Oracle, bench.Command{Exec: []string{"/bin/busybox", "sh", "-c", "echo spoiled > " + string(m.Canary.File)}, Timeout: "5s"})
			},
			step: "r1/gate-canary", subject: "/root/.canary", verdict: engine.Fail, class: record.Contamination,
		},
		"the checker cannot tell (case 21)": {
			plant: func(t *testing.T, s *saboteur, m *bench.Manifest) { m.Checker.Exec = []string{"/usr/bin/drums-none"} },
			step:  "r0/evaluate-before", subject: "", verdict: engine.VerdictUnknown, class: record.VerifierUnavailable,
		},
		"an act that does nothing, where the oracle must succeed": {
			plant: func(t *testing.T, s *saboteur, m *bench.Manifest) {
				m.Task.Oracle = []bench.Command{{Exec: []string{"/bin/busybox", "true"}, Timeout: "5s"}}
			},
			step: "r1/evaluate-after", subject: "score after", verdict: engine.Fail,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := manifest(t, "rollouts=1")
			s := &saboteur{Arm: newArm(t, m)}
			c.plant(t, s, &m)
			res, by, r := execute(t, s, m, "restore")
			if res.Verdict == engine.RunPassed {
				t.Fatal("the run passed")
			}
			o := by[c.step]
			if o.Verdict != c.verdict {
				for _, o := range res.Outcomes {
					if o.Verdict != engine.Pass && o.Verdict != engine.NotRun {
						t.Logf("%s: %s %+v %+v", o.Step, o.Verdict, o.Findings, o.Error)
					}
				}
				t.Fatalf("%s ended %q, want %q", c.step, o.Verdict, c.verdict)
			}
			said := fmt.Sprintf("%+v %+v", o.Findings, o.Error)
			if o.Error != nil {
				said += o.Error.Text
			}
			if !strings.Contains(said, c.subject) {
				t.Errorf("%s does not name %q: %s", c.step, c.subject, said)
			}
			for _, step := range c.unharmed {
				if by[step].Verdict != engine.Pass {
					t.Errorf("%s ended %q: %+v", step, by[step].Verdict, by[step].Findings)
				}
			}
			rollout := 0
			fmt.Sscanf(c.step, "r%d/", &rollout)
			if c.class != "" && (len(r.Rollouts) != 3 || r.Rollouts[rollout].Class != c.class) {
				t.Errorf("rollouts %+v, want class %s", r.Rollouts, c.class)
			}
			if by["release/root"].Verdict != engine.Pass || by["release/slot-0"].Verdict != engine.Pass {
				t.Errorf("release: %+v %+v", by["release/slot-0"], by["release/root"])
			}
		})
	}
}
