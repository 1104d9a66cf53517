package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
)

// tag of the snapshot in a slot's own disk. A disk holds one.
const tag = "drums"

// began tells who watches that a command works; call what it returns once that is over.
func (t *tenancy) began(command string) (ended func()) {
	if t.watch == nil {
		return func() {}
	}
	return t.watch(command)
}

// job runs snapshot-save, snapshot-load or snapshot-delete to its end and takes its
// job away. A job's own error is in query-jobs, not in the command's reply.
func (t *tenancy) job(ctx context.Context, command string) error {
	const id = "drums"
	args := map[string]any{"job-id": id, "tag": tag, "devices": []string{"disk"}}
	if command != "snapshot-delete" {
		args["vmstate"] = "disk"
	}
	defer t.began(command)()
	if err := t.execute(ctx, command, args, nil); err != nil {
		return err
	}
	failed := ""
	err := poll(ctx, "wait for "+command, func() (bool, error) {
		var jobs []struct{ ID, Status, Error string }
		if err := t.execute(ctx, "query-jobs", nil, &jobs); err != nil {
			return false, err
		}
		for _, j := range jobs {
			if j.ID == id {
				failed = j.Error
				return j.Status == "concluded", nil
			}
		}
		return false, &engine.Error{Op: command, Err: fmt.Errorf("%w: its job is gone", engine.ErrUnknown)}
	})
	if err != nil {
		return err
	}
	if err := t.execute(ctx, "job-dismiss", map[string]any{"id": id}, nil); err != nil {
		return err
	}
	if failed != "" {
		return &engine.Error{Op: command, Err: errors.New(failed)}
	}
	return nil
}

// saveState writes the state of a stopped machine to a file, in the form that a
// capability of migration gives it; "" is the plain one. With ignoreShared it is
// that of the devices alone: memory stays in the file that the machine shares.
// What QEMU says of it is a fact for the checkpoint, by that name.
func (t *tenancy) saveState(ctx context.Context, name, form, path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := t.setForm(ctx, form); err != nil {
		return err
	}
	uri := "fd:state"
	if t.filesByName() {
		name, err := filepath.Rel(t.dir, path) // which is where QEMU works
		if err != nil {
			return err
		}
		uri = "file:" + name
	} else if err := t.mon.qmp.ExecuteWithFile(ctx, f, "getfd", map[string]any{"fdname": "state"}, nil); err != nil {
		return err
	}
	var m migration
	err = t.timed(ctx, name, migrationEvent, "completed", &t.told, func() error { return t.migrate(ctx, uri, &m) })
	t.told = append(t.told, sent(name, m.RAM.Transferred))
	return err
}

// migration is what of query-migrate is read.
type migration struct {
	Status string `json:"status"`
	Error  string `json:"error-desc"`
	RAM    struct {
		Transferred *int64 `json:"transferred"`
	} `json:"ram"`
}

// migrate writes the machine to uri, and returns once that is complete.
func (t *tenancy) migrate(ctx context.Context, uri string, m *migration) error {
	defer t.began("migrate")()
	if err := t.execute(ctx, "migrate", map[string]any{"uri": uri}, nil); err != nil {
		return err
	}
	return poll(ctx, "save machine", func() (bool, error) {
		if err := t.execute(ctx, "query-migrate", nil, m); err != nil {
			return false, err
		}
		switch m.Status {
		case "completed":
			return true, nil
		case "failed", "cancelled":
			return false, &engine.Error{Op: "save machine", Err: fmt.Errorf("migration %s: %s", m.Status, m.Error)}
		}
		return false, nil
	})
}

// filesByName: QEMU reads and writes files by their names. Those of 9.0 and newer
// do; that they take a descriptor of one is deprecated since 9.1, and mapped-ram
// wants a name.
func (t *tenancy) filesByName() bool { return t.tool.since(9, 0) }

// setForm has the next save or load be of a form, and of no other.
func (t *tenancy) setForm(ctx context.Context, form string) error {
	set := []map[string]any{{"capability": eventsOn, "state": true}}
	if form != "" {
		set = append(set, map[string]any{"capability": form, "state": true})
	}
	if t.form != "" && t.form != form {
		set = append(set, map[string]any{"capability": t.form, "state": false})
	}
	t.form = form
	return t.execute(ctx, "migrate-set-capabilities", map[string]any{"capabilities": set}, nil)
}

// saveMemory copies the memory of a stopped machine, without its holes.
func (t *tenancy) saveMemory(ctx context.Context, path string) (err error) {
	from, err := os.Open(fmt.Sprintf("/proc/%d/fd/%d", t.pid, fdMemory))
	if err != nil {
		return err
	}
	defer from.Close()
	info, err := from.Stat()
	if err == nil && info.Size() != t.shape.Memory {
		err = fmt.Errorf("%w: descriptor %d of QEMU has %d bytes, the machine %d", engine.ErrUnknown, fdMemory, info.Size(), t.shape.Memory)
	}
	if err != nil {
		return err
	}
	to, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	if err := to.Truncate(info.Size()); err != nil {
		return err
	}
	for at := int64(0); ; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		begin, err := unix.Seek(int(from.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // no more data
			return nil
		}
		if err != nil {
			return os.NewSyscallError("seek", err)
		}
		if at, err = unix.Seek(int(from.Fd()), begin, unix.SEEK_HOLE); err != nil {
			return os.NewSyscallError("seek", err)
		}
		if _, err := io.Copy(io.NewOffsetWriter(to, begin), io.NewSectionReader(from, begin, at-begin)); err != nil {
			return err
		}
	}
}

// loadState loads the state that start handed over, of the form that it was saved
// in; QEMU ends where it cannot. What it returns has QEMU's own time of it later.
func (t *tenancy) loadState(ctx context.Context, form string) (*ear, error) {
	if err := t.setForm(ctx, form); err != nil {
		return nil, err
	}
	uri := "fd:" + strconv.Itoa(fdIncoming)
	if t.filesByName() {
		uri = "file:" + inherited(fdIncoming)
	}
	w, err := t.listen(ctx, "load", migrationEvent, "completed")
	if err != nil {
		return nil, err
	}
	if err := t.incoming(ctx, uri); err != nil {
		w.stop()
		return nil, err
	}
	return w, nil
}

// incoming reads the machine from uri, and returns once it is there, stopped.
func (t *tenancy) incoming(ctx context.Context, uri string) error {
	defer t.began("migrate-incoming")()
	if err := t.execute(ctx, "migrate-incoming", map[string]any{"uri": uri}, nil); err != nil {
		return err
	}
	return poll(ctx, "load machine", func() (bool, error) {
		s, err := t.status(ctx)
		switch {
		case err != nil:
			return false, err
		case s == "inmigrate":
			return false, nil
		case s != "paused":
			return false, &engine.Error{Op: "load machine", Err: fmt.Errorf("its status is %s, not paused", s)}
		}
		return true, nil
	})
}

// hasSnapshot requires that a disk is sound and holds the one snapshot.
func (a *Arm) hasSnapshot(ctx context.Context, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	const name = "json:{\"driver\":\"qcow2\",\"backing\":null,\"file\":{\"driver\":\"file\",\"filename\":\"/proc/self/fd/3\"}}"
	out, err := a.qemuImg(ctx, []*os.File{f}, "info", "--force-share", "--output=json", name)
	if err != nil {
		return err
	}
	var info struct {
		Snapshots []struct {
			Name  string
			State int64 `json:"vm-state-size"`
		}
	}
	if err := json.Unmarshal(out, &info); err != nil {
		return err
	}
	if len(info.Snapshots) != 1 || info.Snapshots[0].Name != tag || info.Snapshots[0].State <= 0 {
		return &engine.Error{Op: "read snapshot back", Err: fmt.Errorf("%w: the disk holds %+v", engine.ErrUnknown, info.Snapshots)}
	}
	_, err = a.qemuImg(ctx, []*os.File{f}, "check", "--force-share", "-q", name)
	return err
}

// copyFile copies a file; where the file system can, the two share their blocks.
func copyFile(from, to string, mode os.FileMode) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) == nil {
		return nil
	}
	_, err = io.Copy(out, in)
	return err
}

const (
	// clockTry is how often a restored guest is asked until it answers.
	clockTry = 5 * time.Millisecond
	// clockRound is how long setting the clock may take, which is how wrong it can be
	// then; a guest's first answer takes longer. It is set clockSets times at most.
	clockRound = 50 * time.Millisecond
	clockSets  = 4
)

// Facts of how a slot came to run.
const (
	factSkew       = "clock-skew-ns"
	factClockError = "clock-error-ns"
)

// wake lets a loaded machine run up to its frozen tree: the guest server
// answers, the tree is read as frozen ever since, and the clock is set. In this order: a
// guest's first answer takes long, and the clock is as right as its answer is quick.
func (p *place) wake(ctx context.Context, t *tenancy) error {
	if t.self {
		return t.stays(ctx)
	}
	if err := t.cont(ctx); err != nil {
		return err
	}
	defer engine.StartSpan(ctx, "clock")()
	if err := p.stayed(ctx, t); err != nil {
		return err
	}
	for sets := 1; ; sets++ {
		var round time.Duration
		err := p.until(ctx, t, func() error {
			begin := time.Now()
			clock, err := t.client().SetClock(ctx, begin)
			round = time.Since(begin)
			if err == nil && sets == 1 {
				t.facts = append(t.facts, engine.Known(clock.Skew.Nanoseconds(), "guest clock before it was set, against the host's", engine.ViewGuest).Fact(factSkew))
			}
			return err
		})
		if err != nil {
			return err
		}
		if round <= clockRound || sets == clockSets {
			t.facts = append(t.facts, engine.Known(round.Nanoseconds(), "time of the exchange that set the guest clock", engine.ViewHost).Fact(factClockError))
			return nil
		}
	}
}

// until asks a guest that does not answer yet, until it does, or the machine ends, or ctx does.
func (p *place) until(ctx context.Context, t *tenancy, ask func() error) error {
	for {
		err := ask()
		if err == nil || errors.Is(err, engine.ErrRefused) || errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if aerr := (&slot{p}).Alive(); aerr != nil {
			return aerr
		}
		select {
		case <-ctx.Done():
			return &engine.Error{Op: "wake " + p.name, Err: fmt.Errorf("%w; last: %v", context.Cause(ctx), err)}
		case <-time.After(clockTry):
		}
	}
}

// in is a file of a checkpoint.
func in(cp engine.Checkpoint, name string) string { return filepath.Join(cp.Dir, name) }
