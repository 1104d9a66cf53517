package sweep

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// run is a run whose engine is about to die.
type run struct {
	t                *testing.T
	state, dir, work string
	id               string
	d                *record.Dir
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// begin makes a run with its scratch directory.
func begin(t *testing.T) *run {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("sweep tests need root")
	}
	return beginIn(t, t.TempDir(), "run")
}

func beginIn(t *testing.T, state, name string) *run {
	t.Helper()
	var random [6]byte
	rand.Read(random[:])
	r := &run{t: t, state: state, id: hex.EncodeToString(random[:]), dir: filepath.Join(state, "runs", name, "fake-restore")}
	r.work = filepath.Join(state, "work", r.id)
	var err error
	r.d, err = record.Create(r.dir)
	must(t, err)
	t.Cleanup(func() { r.d.Close() })
	must(t, os.MkdirAll(filepath.Dir(r.work), 0o755))
	r.own("directory", r.work)
	return r
}

func (r *run) intend(kind string, c bench.Claim) int64 {
	r.t.Helper()
	id, err := r.d.Ledger.Intend(kind, c)
	must(r.t, err)
	return id
}

// own makes a directory or a file, ledger first.
func (r *run) own(kind, path string) int64 {
	r.t.Helper()
	id := r.intend(kind, bench.Claim{Path: path})
	if kind == "directory" {
		must(r.t, os.Mkdir(path, 0o755))
	} else {
		must(r.t, os.WriteFile(path, []byte("x"), 0o600))
	}
	must(r.t, r.d.Ledger.Bind(id, identityAt(r.t, path)))
	return id
}

func identityAt(t testing.TB, path string) bench.Identity {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	return bench.Identity{Dev: number(uint64(st.Dev)), Ino: number(st.Ino)}
}

func number(n uint64) bench.Int64 { return bench.Int64(strconv.FormatUint(n, 10)) }

// die lets go of the run, as the kernel does when the engine is killed.
func (r *run) die() {
	r.t.Helper()
	must(r.t, r.d.Close())
}

func (r *run) sweep(o Options) Report {
	r.t.Helper()
	o.RunDir, o.State = r.dir, r.state
	report, err := Sweep(context.Background(), o)
	must(r.t, err)
	return report
}

func (r *run) ledger() []byte {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.dir, record.LedgerFile))
	must(r.t, err)
	return b
}

// want compares what a sweep did, "OUTCOME KIND" for each thing.
func (r *run) want(report Report, want ...string) {
	r.t.Helper()
	have := []string{}
	for _, t := range report.Things {
		have = append(have, string(t.Outcome)+" "+t.Kind)
	}
	if !slices.Equal(have, want) {
		r.t.Errorf("have %q\nwant %q\n%+v", have, want, report.Things)
	}
}

// clean wants that all is gone and that a further sweep does nothing.
func (r *run) clean() {
	r.t.Helper()
	before := r.ledger()
	r.want(r.sweep(Options{}))
	if !bytes.Equal(before, r.ledger()) {
		r.t.Error("a second sweep wrote to the ledger")
	}
	if _, err := os.Lstat(r.work); !errors.Is(err, fs.ErrNotExist) {
		r.t.Errorf("the scratch directory: %v", err)
	}
}

// sleeper starts a process, in a control group if one is named.
func sleeper(t *testing.T, group string) (pid int, alive func() bool) {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if group != "" {
		dir, err := os.Open(group)
		must(t, err)
		defer dir.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	must(t, cmd.Start())
	id, err := procfs.Identity(cmd.Process.Pid)
	must(t, err)
	done := make(chan struct{})
	go func() { cmd.Wait(); close(done) }()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-done
	})
	return cmd.Process.Pid, func() bool {
		alive, err := procfs.Alive(id)
		must(t, err)
		return alive
	}
}

// groups are our own current groups: "" is v2, pids of v1 or also v2.
func groups(t *testing.T) map[string]string {
	t.Helper()
	own, v2, err := cgroups.ParseCgroupFileUnified("/proc/self/cgroup")
	must(t, err)
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	must(t, err)
	g := map[string]string{}
	for _, m := range mounts {
		switch {
		case m.FSType == "cgroup2":
			g[""] = filepath.Join(m.Mountpoint, strings.TrimPrefix(v2, m.Root))
		case slices.Contains(strings.Split(m.VFSOptions, ","), "pids"):
			g["pids"] = filepath.Join(m.Mountpoint, strings.TrimPrefix(own["pids"], m.Root))
		}
	}
	if g[""] == "" {
		t.Fatal("no cgroup2 hierarchy is mounted")
	}
	return g
}

// makeGroup makes a control group that is removed with the test.
func makeGroup(t *testing.T, path string) {
	t.Helper()
	must(t, os.Mkdir(path, 0o755))
	t.Cleanup(func() { unix.Rmdir(path) })
}

func (r *run) ownGroup(path string) int64 {
	r.t.Helper()
	id := r.intend("cgroup", bench.Claim{Path: path})
	makeGroup(r.t, path)
	must(r.t, r.d.Ledger.Bind(id, identityAt(r.t, path)))
	return id
}

// mount mounts a tmpfs that is unmounted with the test.
func mount(t *testing.T, point string) {
	t.Helper()
	must(t, unix.Mount("drums", point, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { unix.Unmount(point, unix.MNT_DETACH) })
}

// bind mounts somebody else's folder, with a file in it.
func bind(t *testing.T, point string) {
	t.Helper()
	outside := t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "file"), nil, 0o600))
	must(t, unix.Mount(outside, point, "", unix.MS_BIND, ""))
	t.Cleanup(func() { unix.Unmount(point, unix.MNT_DETACH) })
}

func mounted(t *testing.T, point string) int {
	t.Helper()
	at, err := mountsAt(point)
	must(t, err)
	return len(at)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestProcessesAndGroups(t *testing.T) {
	r := begin(t)
	own := groups(t)
	top := filepath.Join(own[""], "drums-"+r.id)
	r.ownGroup(top)
	r.ownGroup(filepath.Join(top, "slot-0"))
	process := r.intend("process", bench.Claim{Cgroup: filepath.Join(top, "slot-0"), Note: "first process of slot-0"})
	pid, first := sleeper(t, filepath.Join(top, "slot-0"))
	id, err := procfs.Identity(pid)
	must(t, err)
	must(t, r.d.Ledger.Bind(process, id))
	// What the ledger does not name: a child, one in a group below, and one between intent and bind.
	makeGroup(t, filepath.Join(top, "slot-0", "below"))
	_, below := sleeper(t, filepath.Join(top, "slot-0", "below"))
	r.intend("process", bench.Claim{Cgroup: filepath.Join(top, "slot-0")})
	_, unbound := sleeper(t, filepath.Join(top, "slot-0"))
	// Decoys: the same name and one character, and a process in it.
	decoy := filepath.Join(own[""], "drums-"+r.id+"0")
	makeGroup(t, decoy)
	_, other := sleeper(t, decoy)
	r.die()

	dry := r.sweep(Options{DryRun: true})
	r.want(dry, "would-take process", "would-take process", "would-take cgroup", "would-take cgroup", "would-take directory")
	if !first() || !below() || !unbound() {
		t.Fatal("a dry run ended a process")
	}
	r.want(r.sweep(Options{}), "absent process", "taken process", "taken cgroup", "taken cgroup", "taken directory")
	if first() || below() || unbound() {
		t.Error("a process of the run's lives")
	}
	if !other() || !exists(decoy) {
		t.Error("the decoys were touched")
	}
	r.clean()
}

// A pid that was given to somebody else since is known by its start time.
func TestRecycledPid(t *testing.T) {
	r := begin(t)
	group := filepath.Join(groups(t)[""], "drums-"+r.id)
	r.ownGroup(group)
	pid, alive := sleeper(t, "")
	id, err := procfs.Identity(pid)
	must(t, err)
	ticks, err := strconv.ParseUint(string(id.StartTicks), 10, 64)
	must(t, err)
	id.StartTicks = number(ticks - 1)
	must(t, r.d.Ledger.Bind(r.intend("process", bench.Claim{Cgroup: group}), id))
	r.die()
	r.want(r.sweep(Options{}), "foreign process", "taken cgroup", "taken directory")
	if !alive() {
		t.Error("somebody else's process was ended")
	}
	r.clean()
}

// A ledger may be anybody's, and may name any process with its true start time: one
// that is in no group of the run's is not the run's.
func TestProcessOutsideItsGroup(t *testing.T) {
	r := begin(t)
	group := filepath.Join(groups(t)[""], "drums-"+r.id)
	r.ownGroup(group)
	pid, alive := sleeper(t, "")
	id, err := procfs.Identity(pid)
	must(t, err)
	must(t, r.d.Ledger.Bind(r.intend("process", bench.Claim{Cgroup: group}), id))
	must(t, r.d.Ledger.Bind(r.intend("export", bench.Claim{Path: filepath.Join(r.work, "x")}), id))
	r.die()
	r.want(r.sweep(Options{}), "unknown export", "unknown process", "taken cgroup", "taken directory")
	if !alive() {
		t.Error("somebody else's process was ended")
	}
}

func TestGroups(t *testing.T) {
	own := groups(t)
	t.Run("made and not bound", func(t *testing.T) {
		r := begin(t)
		path := filepath.Join(own[""], "drums-"+r.id)
		r.intend("cgroup", bench.Claim{Path: path})
		makeGroup(t, path)
		_, alive := sleeper(t, path)
		r.die()
		r.want(r.sweep(Options{}), "taken cgroup", "taken directory")
		if alive() || exists(path) {
			t.Error("it is there")
		}
		r.clean()
	})
	t.Run("another one of its name", func(t *testing.T) {
		r := begin(t)
		path := filepath.Join(own[""], "drums-"+r.id)
		id := r.intend("cgroup", bench.Claim{Path: path})
		makeGroup(t, path)
		other := identityAt(t, path)
		other.Ino += "0"
		must(t, r.d.Ledger.Bind(id, other))
		_, alive := sleeper(t, path)
		r.die()
		r.want(r.sweep(Options{}), "foreign cgroup", "taken directory")
		if !alive() || !exists(path) {
			t.Error("somebody else's group was touched")
		}
		r.clean()
	})
	t.Run("its hierarchy cannot be seen", func(t *testing.T) {
		r := begin(t)
		r.intend("cgroup", bench.Claim{Path: filepath.Join(t.TempDir(), "drums-"+r.id)})
		r.die()
		r.want(r.sweep(Options{}), "unknown cgroup", "taken directory")
	})
	t.Run("a v1 group of limits holds somebody else's process", func(t *testing.T) {
		if own["pids"] == "" {
			own["pids"] = own[""] // a unified host: the group is no ownership group there either
			t.Fatal("this host has no v1 hierarchy; the rule is about those")
		}
		defer func(p time.Duration) { patience = p }(patience)
		patience = 100 * time.Millisecond
		r := begin(t)
		path := filepath.Join(own["pids"], "drums-"+r.id+"-slot-0-1")
		r.ownGroup(path)
		pid, alive := sleeper(t, "")
		must(t, os.WriteFile(filepath.Join(path, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0))
		r.die()
		report := r.sweep(Options{})
		r.want(report, "failed cgroup", "taken directory")
		if !strings.Contains(report.Things[0].Reason, strconv.Itoa(pid)) || report.Worst() != Failed {
			t.Errorf("%+v", report)
		}
		if !alive() {
			t.Error("somebody else's process was ended")
		}
		must(t, os.WriteFile(filepath.Join(own["pids"], "cgroup.procs"), []byte(strconv.Itoa(pid)), 0))
		r.want(r.sweep(Options{}), "taken cgroup")
		r.clean()
	})
}

func TestMounts(t *testing.T) {
	defer func(p time.Duration) { patience = p }(patience)
	begin := func(t *testing.T) (r *run, point string, own func()) {
		r = begin(t)
		point = filepath.Join(r.work, "root")
		r.own("directory", point)
		id := r.intend("mount", bench.Claim{Path: point, Backing: "drums"})
		mount(t, point)
		return r, point, func() { must(t, r.d.Ledger.Bind(id, identityAt(t, point))) }
	}
	t.Run("bound", func(t *testing.T) {
		r, _, own := begin(t)
		own()
		similar := r.work + "0"
		must(t, os.MkdirAll(filepath.Join(similar, "root"), 0o755))
		mount(t, filepath.Join(similar, "root"))
		r.die()
		r.want(r.sweep(Options{DryRun: true}), "would-take mount", "would-take directory", "would-take directory")
		r.want(r.sweep(Options{}), "taken mount", "taken directory", "taken directory")
		if mounted(t, filepath.Join(similar, "root")) != 1 {
			t.Error("the decoy was unmounted")
		}
		r.clean()
	})
	t.Run("made and not bound", func(t *testing.T) {
		r, _, _ := begin(t)
		r.die()
		r.want(r.sweep(Options{}), "taken mount", "taken directory", "taken directory")
		r.clean()
	})
	t.Run("another one at its place", func(t *testing.T) {
		r, point, own := begin(t)
		own()
		must(t, unix.Unmount(point, 0))
		bind(t, point)
		r.die()
		report := r.sweep(Options{})
		r.want(report, "foreign mount", "failed directory", "failed directory")
		if !exists(filepath.Join(point, "file")) || mounted(t, point) != 1 {
			t.Fatal("somebody else's mount was touched")
		}
		must(t, unix.Unmount(point, 0))
		r.want(r.sweep(Options{}), "taken directory", "taken directory")
		r.clean()
	})
	t.Run("another one over it", func(t *testing.T) {
		r, point, own := begin(t)
		own()
		bind(t, point)
		r.die()
		report := r.sweep(Options{})
		r.want(report, "failed mount", "failed directory", "failed directory")
		if mounted(t, point) != 2 {
			t.Fatal("something was unmounted")
		}
		must(t, unix.Unmount(point, 0))
		r.want(r.sweep(Options{}), "taken mount", "taken directory", "taken directory")
		r.clean()
	})
	t.Run("in use", func(t *testing.T) {
		patience = 100 * time.Millisecond
		r, point, own := begin(t)
		own()
		f, err := os.Create(filepath.Join(point, "file"))
		must(t, err)
		defer f.Close()
		r.die()
		report := r.sweep(Options{})
		if report.Things[0].Outcome != Failed || !strings.Contains(report.Things[0].Hint, "fuser -m") {
			t.Errorf("%+v", report.Things)
		}
		f.Close()
		r.sweep(Options{})
		r.clean()
	})
}

func TestLoopDevices(t *testing.T) {
	r := begin(t)
	backing := filepath.Join(r.state, "backing")
	must(t, os.WriteFile(backing, make([]byte, 1<<20), 0o600))
	attach := func(name string) (device string, f *os.File) {
		t.Helper()
		control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
		must(t, err)
		defer control.Close()
		file, err := os.Open(backing)
		must(t, err)
		defer file.Close()
		for range 50 { // others take devices too
			n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
			must(t, err)
			f, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDONLY, 0)
			must(t, err)
			config := unix.LoopConfig{Fd: uint32(file.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_READ_ONLY | unix.LO_FLAGS_AUTOCLEAR}}
			copy(config.Info.File_name[:], name)
			if err := unix.IoctlLoopConfigure(int(f.Fd()), &config); err == nil {
				t.Cleanup(func() { f.Close() })
				return f.Name(), f
			}
			f.Close()
		}
		t.Fatal("no free loop device")
		return "", nil
	}
	shown := func(device string) bool {
		d, err := readLoop(device)
		must(t, err)
		return d != nil
	}
	// Two of other runs on the very same file, and the run's own between them, bound and not.
	before, _ := attach("drums-" + "0123456789ab")
	id := r.intend("loop", bench.Claim{Path: "drums-" + r.id, Backing: backing})
	device, held := attach("drums-" + r.id)
	bound := identityAt(t, backing)
	bound.Loop = device
	must(t, r.d.Ledger.Bind(id, bound))
	after, _ := attach("losetup")
	r.die()

	defer func(p time.Duration) { patience = p }(patience)
	patience = 200 * time.Millisecond
	report := r.sweep(Options{})
	r.want(report, "failed loop", "taken directory")
	if !strings.Contains(report.Things[0].Reason, device) {
		t.Errorf("%+v", report.Things[0])
	}
	held.Close()
	report = r.sweep(Options{})
	// The kernel has cleared it with its last user, or we did.
	if len(report.Things) != 1 || report.Things[0].Outcome == Failed || report.Things[0].Outcome == Unknown {
		t.Errorf("%+v", report.Things)
	}
	if !shown(before) || !shown(after) {
		t.Error("another run's device was detached")
	}
	r.clean()
}

// A device number that was given to another owner since.
func TestRecycledLoopDevice(t *testing.T) {
	r := begin(t)
	backing := filepath.Join(r.state, "backing")
	must(t, os.WriteFile(backing, make([]byte, 1<<20), 0o600))
	out, err := exec.Command("/sbin/losetup", "--find", "--show", "--read-only", backing).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() { exec.Command("/sbin/losetup", "--detach", device).Run() })
	bound := identityAt(t, backing)
	bound.Loop = device
	must(t, r.d.Ledger.Bind(r.intend("loop", bench.Claim{Path: "drums-" + r.id, Backing: backing}), bound))
	r.die()
	r.want(r.sweep(Options{}), "foreign loop", "taken directory")
	if d, err := readLoop(device); err != nil || d == nil {
		t.Errorf("somebody else's device was detached: %v", err)
	}
	r.clean()
}

func TestFilesAndDirectories(t *testing.T) {
	t.Run("with everything in them", func(t *testing.T) {
		r := begin(t)
		slot := filepath.Join(r.work, "slot-0.0")
		r.own("directory", slot)
		r.own("file", slot+".slot")
		must(t, os.MkdirAll(filepath.Join(slot, "upper", "a", "b"), 0o000))
		// A symbolic link to somebody else's folder, a device, a pipe: all are names only.
		outside := t.TempDir()
		must(t, os.WriteFile(filepath.Join(outside, "file"), []byte("mine"), 0o600))
		must(t, os.Symlink(outside, filepath.Join(slot, "upper", "link")))
		must(t, os.Symlink(outside, filepath.Join(r.work, "link")))
		must(t, unix.Mknod(filepath.Join(slot, "upper", "null"), unix.S_IFCHR, int(unix.Mkdev(1, 3))))
		must(t, unix.Mkfifo(filepath.Join(slot, "upper", "pipe"), 0o600))
		for _, similar := range []string{r.work + "0", filepath.Join(r.state, "work", "drums-"+r.id)} {
			must(t, os.MkdirAll(filepath.Join(similar, "kept"), 0o755))
		}
		r.die()
		r.want(r.sweep(Options{DryRun: true}), "would-take file", "would-take directory", "would-take directory")
		r.want(r.sweep(Options{}), "taken file", "taken directory", "taken directory")
		if b, err := os.ReadFile(filepath.Join(outside, "file")); err != nil || string(b) != "mine" {
			t.Error("a symbolic link was followed")
		}
		if !exists(filepath.Join(r.work+"0", "kept")) || !exists(filepath.Join(r.state, "work", "drums-"+r.id, "kept")) {
			t.Error("a folder of a similar name was touched")
		}
		r.clean()
	})
	t.Run("made and not bound", func(t *testing.T) {
		r := begin(t)
		r.intend("directory", bench.Claim{Path: filepath.Join(r.work, "a")})
		r.intend("file", bench.Claim{Path: filepath.Join(r.work, "b")})
		must(t, os.Mkdir(filepath.Join(r.work, "a"), 0o755))
		must(t, os.WriteFile(filepath.Join(r.work, "b"), nil, 0o600))
		r.intend("file", bench.Claim{Path: filepath.Join(r.work, "never")})
		r.intend("file", bench.Claim{Path: filepath.Join(r.work, "no", "such")})
		r.die()
		r.want(r.sweep(Options{}), "absent file", "absent file", "taken file", "taken directory", "taken directory")
		r.clean()
	})
	t.Run("another one of its name", func(t *testing.T) {
		r := begin(t)
		r.own("directory", filepath.Join(r.work, "a"))
		r.own("file", filepath.Join(r.work, "b"))
		r.intend("file", bench.Claim{Path: filepath.Join(r.work, "c")})
		must(t, os.Mkdir(filepath.Join(r.work, "c"), 0o755))
		must(t, os.Rename(filepath.Join(r.work, "a"), filepath.Join(r.work, "moved")))
		must(t, os.Symlink("moved", filepath.Join(r.work, "a")))
		must(t, os.WriteFile(filepath.Join(r.work, "new"), nil, 0o600))
		must(t, os.Rename(filepath.Join(r.work, "new"), filepath.Join(r.work, "b")))
		r.die()
		// All of it lies in the run's own scratch directory, and goes with that.
		r.want(r.sweep(Options{}), "foreign file", "foreign file", "foreign directory", "taken directory")
		r.clean()
	})
	t.Run("the scratch directory is another one", func(t *testing.T) {
		r := begin(t)
		must(t, os.Rename(r.work, r.work+"-moved"))
		must(t, os.MkdirAll(filepath.Join(r.work, "kept"), 0o755))
		r.die()
		r.want(r.sweep(Options{}), "foreign directory")
		if !exists(filepath.Join(r.work, "kept")) {
			t.Error("somebody else's directory was removed")
		}
	})
	t.Run("a foreign mount in them", func(t *testing.T) {
		r := begin(t)
		slot := filepath.Join(r.work, "slot-0.0")
		r.own("directory", slot)
		point := filepath.Join(slot, "point")
		must(t, os.Mkdir(point, 0o755))
		bind(t, point) // it has the device of what is around it: only the kernel knows
		r.die()
		report := r.sweep(Options{})
		r.want(report, "failed directory", "failed directory")
		if !strings.Contains(report.Things[0].Hint, "unmount that first") {
			t.Errorf("%+v", report.Things[0])
		}
		if !exists(filepath.Join(point, "file")) {
			t.Fatal("a mount was entered")
		}
		must(t, unix.Unmount(point, 0))
		r.want(r.sweep(Options{}), "taken directory", "taken directory")
		r.clean()
	})
	t.Run("a symbolic link on the way", func(t *testing.T) {
		r := begin(t)
		outside := t.TempDir()
		must(t, os.Mkdir(filepath.Join(outside, "a"), 0o755))
		must(t, os.Symlink(outside, filepath.Join(r.work, "link")))
		r.intend("directory", bench.Claim{Path: filepath.Join(r.work, "link", "a")})
		r.die()
		r.want(r.sweep(Options{}), "failed directory", "taken directory")
		if !exists(filepath.Join(outside, "a")) {
			t.Error("a symbolic link was followed")
		}
	})
	t.Run("without the claim", func(t *testing.T) {
		r := begin(t)
		outside := t.TempDir()
		r.own("directory", filepath.Join(outside, "a"))
		r.intend("mount", bench.Claim{Path: outside})
		mount(t, outside)
		r.intend("cgroup", bench.Claim{Path: groups(t)[""]})
		r.intend("loop", bench.Claim{Path: "drums-0123456789ab", Backing: "/dev/null"})
		r.intend("file", bench.Claim{Path: r.work + "/../" + r.id + "/x"})
		r.die()
		report := r.sweep(Options{})
		r.want(report, "unknown file", "unknown loop", "unknown cgroup", "unknown mount", "unknown directory", "taken directory")
		if mounted(t, outside) != 1 || report.Worst() != Unknown {
			t.Error("what does not bear the claim was touched")
		}
		must(t, unix.Unmount(outside, 0))
		if !exists(filepath.Join(outside, "a")) {
			t.Error("what does not bear the claim was touched")
		}
	})
}

// After a reboot only what lies on disk can be left, and device numbers may be others.
func TestAfterAReboot(t *testing.T) {
	r := begin(t)
	group := filepath.Join(groups(t)[""], "drums-"+r.id)
	r.ownGroup(group)
	pid, alive := sleeper(t, "")
	id, err := procfs.Identity(pid)
	must(t, err)
	must(t, r.d.Ledger.Bind(r.intend("process", bench.Claim{Cgroup: group}), id))
	point := filepath.Join(r.work, "root")
	r.own("directory", point)
	r.intend("mount", bench.Claim{Path: point})
	r.own("file", filepath.Join(r.work, "file"))
	r.die()
	boot, err := record.BootID()
	must(t, err)
	text := bytes.ReplaceAll(r.ledger(), []byte(boot), []byte("00000000-0000-0000-0000-000000000000"))
	dev := []byte(`"dev":"` + string(identityAt(t, r.work).Dev) + `"`)
	text = bytes.ReplaceAll(text, dev, []byte(`"dev":"1"`))
	must(t, os.WriteFile(filepath.Join(r.dir, record.LedgerFile), text, 0o600))
	mount(t, filepath.Join(t.TempDir()))

	r.want(r.sweep(Options{}), "taken file", "absent mount", "taken directory", "absent process", "absent cgroup", "taken directory")
	if !alive() {
		t.Error("a process of this boot was taken for one of the last")
	}
	if !exists(group) {
		t.Error("a group of this boot was taken for one of the last")
	}
	r.clean()
}

// The storage daemon with its export, as after a kill of the engine.
func TestExport(t *testing.T) {
	for _, died := range []bool{false, true} {
		t.Run(fmt.Sprintf("daemon dead %v", died), func(t *testing.T) {
			r := begin(t)
			disk := filepath.Join(r.state, "disk.qcow2")
			if out, err := exec.Command("qemu-img", "create", "-q", "-f", "qcow2", disk, "1M").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			group := filepath.Join(groups(t)[""], "drums-"+r.id)
			r.ownGroup(group)
			export := filepath.Join(r.work, "disk.raw")
			r.own("file", export)
			id := r.intend("export", bench.Claim{Path: export, Backing: disk})
			cmd := exec.Command("qemu-storage-daemon", "--blockdev", `{"driver":"file","node-name":"f","filename":"`+disk+`"}`,
				"--blockdev", `{"driver":"qcow2","node-name":"d","file":"f"}`, "--export", `{"type":"fuse","id":"e","node-name":"d","mountpoint":"`+export+`","writable":false}`)
			born, err := os.Open(group)
			must(t, err)
			defer born.Close()
			cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(born.Fd())}
			must(t, cmd.Start())
			done := make(chan struct{})
			go func() { cmd.Wait(); close(done) }()
			t.Cleanup(func() {
				cmd.Process.Kill()
				<-done
				unix.Unmount(export, unix.MNT_DETACH)
			})
			identity, err := procfs.Identity(cmd.Process.Pid)
			must(t, err)
			must(t, r.d.Ledger.Bind(id, identity))
			for deadline := time.Now().Add(10 * time.Second); mounted(t, export) == 0; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the export never came")
				}
			}
			if died { // its mount stays and cannot be looked at any more
				must(t, cmd.Process.Kill())
				<-done
			}
			r.die()
			r.want(r.sweep(Options{}), "taken export", "taken file", "taken cgroup", "taken directory")
			<-done
			r.clean()
		})
	}
}

func TestNobodyElseWorksInTheRun(t *testing.T) {
	r := begin(t)
	// An engine lives.
	if _, err := Sweep(context.Background(), Options{RunDir: r.dir, State: r.state}); !errors.Is(err, record.ErrRunning) {
		t.Errorf("a run whose engine lives: %v", err)
	}
	if _, err := Sweep(context.Background(), Options{RunDir: r.dir, State: r.state, DryRun: true}); !errors.Is(err, record.ErrRunning) {
		t.Errorf("a dry run of it: %v", err)
	}
	r.die()
	// Another sweep does.
	var inner error
	r.sweep(Options{Hook: func(p Point) {
		if p.Stage == StageEnded {
			_, inner = Sweep(context.Background(), Options{RunDir: r.dir, State: r.state})
		}
	}})
	if !errors.Is(inner, record.ErrRunning) {
		t.Errorf("two sweeps at once: %v", inner)
	}
	r.clean()
}

func TestWhatIsNoLedgerOfOurs(t *testing.T) {
	sweep := func(r *run) error {
		_, err := Sweep(context.Background(), Options{RunDir: r.dir, State: r.state})
		return err
	}
	r := begin(t)
	r.die()
	good := r.ledger()
	write := func(b []byte) { must(t, os.WriteFile(filepath.Join(r.dir, record.LedgerFile), b, 0o600)) }
	if _, err := Sweep(context.Background(), Options{RunDir: r.dir, State: t.TempDir()}); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("of another state directory: %v", err)
	}
	write(append(slices.Clone(good), "nonsense\n"...))
	if err := sweep(r); err == nil {
		t.Error("an illegible line")
	}
	write(bytes.ReplaceAll(good, []byte(r.id), []byte("etc")))
	if err := sweep(r); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("without a claim: %v", err)
	}
	if !exists(r.work) {
		t.Fatal("something was taken away")
	}
	if _, err := Sweep(context.Background(), Options{RunDir: t.TempDir()}); !errors.Is(err, engine.ErrUsage) {
		t.Errorf("no run: %v", err)
	}
	// A last line that was cut off did not happen; a state directory that is reached otherwise is the same.
	write(append(slices.Clone(good), `{"seq":2,"ti`...))
	link := filepath.Join(t.TempDir(), "state")
	must(t, os.Symlink(r.state, link))
	report, err := Sweep(context.Background(), Options{RunDir: r.dir, State: link})
	must(t, err)
	r.want(report, "taken directory")
	if report.Torn != 3 {
		t.Errorf("torn line %d", report.Torn)
	}
	r.clean()
	// An engine that died before it wrote a line owned nothing.
	write(nil)
	r.want(r.sweep(Options{}))
	must(t, os.Remove(filepath.Join(r.dir, record.LedgerFile)))
	r.want(r.sweep(Options{}))
}

func TestTemporaryFilesOfTheRun(t *testing.T) {
	r := begin(t)
	r.die()
	for _, name := range []string{".record.json123", "evidence/.new-77", "record.json", ".manifest.jsonx", "evidence/new-1"} {
		must(t, os.WriteFile(filepath.Join(r.dir, name), nil, 0o600))
	}
	must(t, os.Symlink("/etc/passwd", filepath.Join(r.dir, ".plan.json5")))
	r.want(r.sweep(Options{DryRun: true}), "would-take directory", "would-take file", "would-take file")
	r.want(r.sweep(Options{}), "taken directory", "taken file", "taken file")
	for _, name := range []string{"record.json", ".manifest.jsonx", "evidence/new-1", ".plan.json5"} {
		if !exists(filepath.Join(r.dir, name)) {
			t.Errorf("%s is gone", name)
		}
	}
	r.clean()
}

func TestDryRunWritesNothing(t *testing.T) {
	r := begin(t)
	r.own("file", filepath.Join(r.work, "file"))
	r.intend("file", bench.Claim{Path: filepath.Join(r.work, "never")})
	r.die()
	before := r.ledger()
	r.want(r.sweep(Options{DryRun: true}), "absent file", "would-take file", "would-take directory")
	if !bytes.Equal(before, r.ledger()) || !exists(filepath.Join(r.work, "file")) {
		t.Error("it changed something")
	}
}

// A sweep that was stopped goes on where it stopped.
func TestStoppedSweep(t *testing.T) {
	r := begin(t)
	for i := range 4 {
		r.own("file", filepath.Join(r.work, strconv.Itoa(i)))
	}
	r.die()
	ctx, cancel := context.WithCancel(context.Background())
	report, err := Sweep(ctx, Options{RunDir: r.dir, State: r.state, Hook: func(p Point) {
		if p == (Point{StageRecorded, 1}) {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	r.want(report, "taken file", "taken file")
	r.want(r.sweep(Options{}), "taken file", "taken file", "taken directory")
	r.clean()
}

func TestRunsAndOrphans(t *testing.T) {
	state := t.TempDir()
	a, b := beginIn(t, state, "a"), beginIn(t, state, "b[1]*")
	a.die()
	b.die()
	orphan := filepath.Join(state, "work", "0123456789ab")
	for _, dir := range []string{orphan, filepath.Join(state, "work", "image-build"), filepath.Join(state, "runs", "empty")} {
		must(t, os.MkdirAll(dir, 0o755))
	}
	runs, err := Runs(filepath.Join(state, "runs"))
	must(t, err)
	if !slices.Equal(runs, []string{a.dir, b.dir}) {
		t.Errorf("runs %q", runs)
	}
	if one, err := Runs(filepath.Dir(b.dir)); err != nil || !slices.Equal(one, []string{b.dir}) {
		t.Errorf("below a folder with signs of a pattern: %q, %v", one, err)
	}
	if one, err := Runs(b.dir); err != nil || !slices.Equal(one, []string{b.dir}) {
		t.Errorf("the run itself: %q, %v", one, err)
	}
	orphans, err := Orphans(state, runs)
	must(t, err)
	if len(orphans) != 1 || orphans[0] != (Orphan{Path: orphan, Claim: "0123456789ab"}) {
		t.Errorf("orphans %+v", orphans)
	}
	for _, want := range []bool{true, false} {
		pending, err := Pending(a.dir)
		must(t, err)
		if pending != want {
			t.Errorf("pending %v, want %v", pending, want)
		}
		a.sweep(Options{})
	}
	b.sweep(Options{})
}

// A slot that somebody keeps lives without an engine.
func TestKept(t *testing.T) {
	state := t.TempDir()
	for name, handle := range map[string]string{
		"own": `{"state":"running"}`, "of-a-run": `{"state":"stopped","run":"/runs/a"}`, "gone": `{"state":"gone","run":"/runs/b"}`, "damaged": `{`,
	} {
		must(t, os.MkdirAll(filepath.Join(state, "slots", name), 0o755))
		must(t, os.WriteFile(filepath.Join(state, "slots", name, "handle.json"), []byte(handle), 0o600))
	}
	must(t, os.MkdirAll(filepath.Join(state, "slots", "crashed"), 0o755))
	kept, err := Kept(state)
	must(t, err)
	slots := filepath.Join(state, "slots")
	if want := map[string]string{filepath.Join(slots, "own"): "own", "/runs/a": "of-a-run", filepath.Join(slots, "damaged"): "damaged"}; !maps.Equal(kept, want) {
		t.Errorf("have %v, want %v", kept, want)
	}
}
