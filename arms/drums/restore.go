package drums

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/checkpoint"
	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/locks"
	"github.com/drumsbench/drumsbench/arms/overlay"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// undoTime bounds what is done after a failure or a cancellation.
const undoTime = 30 * time.Second

// compatible are the facts that a checkpoint is of.
var compatible = []string{"kernel-release", "machine", "cpu-features", "criu.version", "criu.sha256", engine.EngineDigest}

// besideCRIU runs fn where criu finds what it needs: a mount namespace with a
// private /run that holds what it learnt of the kernel before, since criu caches
// that only on a tmpfs, and with a private /tmp, in which it leaves things
// behind. checkpoint is where its images lie.
func (a *Arm) besideCRIU(ws *engine.Workspace, checkpoint string, fn func() error) error {
	kdat, err := a.tool.Kdat(kdatDir(ws.State))
	if err != nil {
		return err
	}
	return apart(0, func() error {
		if err := criu.MountRun("/run"); err != nil {
			return err
		}
		if err := kdat.Prefill("/run"); err != nil {
			return err
		}
		if err := privateTmp(ws.State, ws.Work, ws.Run, checkpoint, a.tool.Path); err != nil {
			return err
		}
		return fn()
	})
}

// command is criu, born in a cgroup.
func (a *Arm) command(groupFD int) *exec.Cmd {
	cmd := a.tool.Command()
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: groupFD}
	return cmd
}

// Restore implements engine.Arm.
func (a *Arm) Restore(ctx context.Context, ws *engine.Workspace, r engine.Root, cp engine.Checkpoint, old engine.Place, p bench.RestoreParams) (engine.Stopped, error) {
	mounted, ok := r.(*root)
	if !ok {
		return nil, fmt.Errorf("restore: root of another arm: %T", r)
	}
	// Everything that can refuse comes before the old tree is ended.
	end := engine.StartSpan(ctx, "verify")
	err := a.usable(ctx, mounted, cp)
	end()
	if err != nil {
		return nil, err
	}
	pl, err := a.takePlace(ctx, ws, r, old, string(p.Slot))
	if err != nil {
		return nil, err
	}
	s, err := pl.restore(ctx, cp, p)
	if err != nil {
		return nil, pl.abandon(ctx, "restore "+pl.name, err, old == nil)
	}
	return s, nil
}

// usable requires that the checkpoint is whole and of this arm, image, kernel, CPU and criu.
func (a *Arm) usable(ctx context.Context, r *root, cp engine.Checkpoint) error {
	refused := func(what, want, have string) error {
		return &engine.Error{Op: "restore checkpoint", Err: fmt.Errorf("%w: it is of another %s: %s, here %s", engine.ErrRefused, what, want, have), Hint: "make the checkpoint again"}
	}
	if cp.Handle.Arm != Kind {
		return refused("arm", cp.Handle.Arm, Kind)
	}
	if cp.Handle.Image != r.sha256 {
		return refused("image", string(cp.Handle.Image), string(r.sha256))
	}
	if err := checkpoint.Compatible(cp.Handle, append(a.tool.Facts(), a.host...), compatible...); err != nil {
		return err
	}
	_, err := checkpoint.Verify(ctx, cp)
	return err
}

func (p *place) restore(ctx context.Context, cp engine.Checkpoint, params bench.RestoreParams) (*stopped, error) {
	end := engine.StartSpan(ctx, "place")
	t, err := p.move(params.Resources)
	end()
	if err != nil {
		return nil, err
	}
	t.policy, t.exclude, t.from, t.held = params.Policy, nonNil(params.Exclude), &cp, true
	lower := []string{}
	for _, l := range cp.Handle.Layers {
		t.layers = append(t.layers, filepath.Join(cp.Dir, l))
		lower = append([]string{filepath.Join(cp.Dir, l)}, lower...) // overlay wants the topmost first
	}
	lower = append(lower, p.root.Dir())

	work := filepath.Join(t.dir, "criu")
	if err := os.Mkdir(work, 0o700); err != nil {
		return nil, err
	}
	t.procID, err = p.ws.Ledger.Intend("process", bench.Claim{Cgroup: p.group.Path(), Note: "restored first process of " + p.name})
	if err != nil {
		return nil, err
	}
	images := filepath.Join(cp.Dir, imagesDir)
	pid := 0
	err = p.arm.besideCRIU(p.ws, cp.Dir, func() error {
		end := engine.StartSpan(ctx, "layer")
		err := overlay.Mount(overlay.Options{Lower: lower, Upper: t.upper(), Work: t.work(), Target: t.merged(), NFSExport: true})
		if err == nil {
			err = overlay.CopyUp(t.merged(), t.upper(), cp.Handle.CopyUp)
		}
		end()
		if err != nil {
			return err
		}
		defer engine.StartSpan(ctx, "criu")()
		leave, err := t.limits.JoinThread()
		if err != nil {
			return err
		}
		pid, err = criu.Restore(ctx, p.arm.command(p.birth(t)), criu.RestoreOptions{
			ImagesDir: images, WorkDir: work, Root: t.merged(), Sibling: true, LeaveStopped: true,
			FileLocks: p.arm.settings.Locks != "refuse", TCPClose: t.policy.EstablishedTCP == "close",
			Started: leave,
		}, nil)
		return errors.Join(err, leave())
	})
	if err != nil {
		return nil, p.keepLog(work, err)
	}
	if err := p.settle(t, pid); err != nil {
		return nil, err
	}
	inner, err := criu.OpenImages(images).StoppedAtDump()
	if err != nil {
		return nil, err
	}
	t.stopped = map[int]bool{}
	for _, i := range inner {
		t.stopped[i] = true
	}
	if p.arm.settings.Locks == "repair" {
		defer engine.StartSpan(ctx, "repair")()
		if err := repair(ctx, pid, cp.Handle.Locks); err != nil {
			return nil, err
		}
	}
	return &stopped{p}, nil
}

// keepLog copies criu's log beside the run before the tenancy's folder goes, and names it in the error.
func (p *place) keepLog(work string, err error) error {
	for _, name := range []string{"dump.log", "restore.log"} {
		b, rerr := os.ReadFile(filepath.Join(work, name))
		if rerr != nil {
			continue
		}
		ev, perr := p.ws.Evidence.Put("criu-"+name, b)
		if perr != nil {
			return fmt.Errorf("%w; and its log is lost: %w", err, perr)
		}
		var e *engine.Error
		if asError(err, &e) {
			e.Log = p.ws.Evidence.Path(ev)
		}
	}
	return err
}

// repair puts back the locks that the restored, stopped tree lacks. The gate
// takes the census again; nothing here is believed.
func repair(ctx context.Context, pid int, want []bench.Lock) error {
	have, _, err := locks.Census(pid)
	if err != nil {
		return fmt.Errorf("census of locks: %w", err)
	}
	missing, _ := locks.Diff(want, have)
	if len(missing) == 0 {
		return nil
	}
	_, err = locks.Repair(ctx, pid, missing)
	return err
}

// Resume implements engine.Stopped: SIGCONT to every task that ran at the dump,
// then the first process's state is read back.
func (s *stopped) Resume(ctx context.Context) (engine.Slot, error) {
	t := s.now
	if t == nil || t.pid == 0 {
		return nil, &engine.Error{Op: "resume " + s.name, Err: engine.ErrDead}
	}
	tasks, err := procfs.Tasks(t.pid)
	if err != nil {
		return nil, &engine.Error{Op: "resume " + s.name, Err: err}
	}
	for _, task := range tasks {
		if t.stopped[task.Inner] {
			continue
		}
		if err := unix.Kill(task.Pid, unix.SIGCONT); err != nil {
			return nil, &engine.Error{Op: "resume " + s.name, Err: fmt.Errorf("continue pid %d: %w", task.Inner, err)}
		}
	}
	for {
		tasks, err := procfs.Tasks(t.pid)
		if err != nil {
			return nil, &engine.Error{Op: "resume " + s.name, Err: err}
		}
		running := true
		for _, task := range tasks {
			if task.Status.State == 'T' && !t.stopped[task.Inner] {
				running = false
			}
		}
		if running {
			t.held = false
			return &slot{s.place}, nil
		}
		select {
		case <-ctx.Done():
			return nil, &engine.Error{Op: "resume " + s.name, Err: context.Cause(ctx)}
		case <-time.After(200 * time.Microsecond):
		}
	}
}

func asError(err error, e **engine.Error) bool { return errors.As(err, e) }

func nonNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
