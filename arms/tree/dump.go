package tree

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/overlay"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/checkpoint"
	"github.com/drumsbench/drumsbench/engine/pathtext"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Folders of a checkpoint: CRIU's images, and the slot's sealed upper layer.
const (
	ImagesDir = "images"
	LayerDir  = "layers/0"
)

// stateFile is the state manifest of a checkpoint.
const stateFile = "state.json"

// A dump that met something which goes away by itself (a connection that its
// server has not accepted yet, as right after a program's start) is tried again
// while the tree runs on: DumpAttempts times at most, first after dumpPause,
// then after twice the pause before.
const (
	DumpAttempts = 6
	dumpPause    = 50 * time.Millisecond
)

// Dumpable requires that a slot's tenancy, which may be nil, is one to be dumped.
func (t *Tenancy) Dumpable(slot string) error {
	if t == nil || t.Pid == 0 {
		return engine.ErrDead
	}
	return nil
}

// Draft has f make a checkpoint of a slot in a folder of the scratch directory,
// and moves it once it is sealed: what is not a whole checkpoint never looks like
// one, and sweep knows whose it is.
func Draft(ws *engine.Workspace, slot string, f func(dir string) (engine.Checkpoint, error)) (cp engine.Checkpoint, err error) {
	dir := filepath.Join(ws.Work, slot+".checkpoint")
	id, err := engine.Own(ws.Ledger, "directory", bench.Claim{Path: dir}, func() (bench.Identity, error) {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return bench.Identity{}, err
		}
		return FileIdentity(dir)
	})
	if err != nil {
		return engine.Checkpoint{}, err
	}
	defer func() {
		rerr := os.RemoveAll(dir)
		if rerr == nil {
			rerr = ws.Ledger.Gone(id)
		}
		err = errors.Join(err, rerr)
	}()
	// Nobody else may enter where the layers lie: they hold what the guest's root user made, set-user-id programs too.
	if err := os.Mkdir(filepath.Join(dir, filepath.Dir(LayerDir)), 0o700); err != nil {
		return engine.Checkpoint{}, err
	}
	if cp, err = f(dir); err != nil {
		return engine.Checkpoint{}, err
	}
	if cp.Dir, err = ws.CheckpointDir(slot); err != nil {
		return cp, err
	}
	return cp, os.Rename(dir, cp.Dir)
}

// Attempts has once dump a slot's tree with a tool into fresh folders. A dump that
// fails with criu.ErrTransient is tried again, each time from the start: none of
// it is silent, the waits are spans, the logs are evidence, and the fact, which
// belongs in the checkpoint, says how many attempts it took and why.
func Attempts(ctx context.Context, slot, tool string, folders []string, once func() error) (bench.Fact, error) {
	source := tool
	for attempt, pause := 1, dumpPause; ; attempt, pause = attempt+1, 2*pause {
		for _, d := range folders {
			if err := errors.Join(os.RemoveAll(d), os.Mkdir(d, 0o755)); err != nil {
				return bench.Fact{}, err
			}
		}
		err := once()
		if err == nil {
			return bench.Fact{Name: "dump-attempts", Known: true, Value: strconv.Itoa(attempt), Source: source, View: engine.ViewHost}, nil
		}
		if !errors.Is(err, criu.ErrTransient) || attempt == DumpAttempts {
			return bench.Fact{}, err
		}
		source = tool + "; attempt " + strconv.Itoa(attempt) + ": " + err.Error()
		end := engine.StartSpan(ctx, "transient")
		select {
		case <-ctx.Done():
			return bench.Fact{}, &engine.Error{Op: "dump " + slot, Err: errors.Join(context.Cause(ctx), err)}
		case <-time.After(pause):
		}
		end()
	}
}

// Dumped is a slot whose tree was dumped, with what its checkpoint is to say.
type Dumped struct {
	Arm, Slot string
	Params    bench.DumpParams
	Root      *Root
	Tenancy   *Tenancy
	Group     *cgroup.Group
	Census    Census
	Facts     []bench.Fact
	// Sharing is the arm's setting of that name.
	Sharing string
}

// Seal ends what is left of the tree, turns the upper layer into a read-only one
// and writes the handle of the checkpoint in dir.
func (d Dumped) Seal(ctx context.Context, dir string) (engine.Checkpoint, error) {
	t, c := d.Tenancy, d.Census
	img := criu.OpenImages(filepath.Join(dir, ImagesDir))
	sharing, err := d.keepSharing(dir)
	if err != nil {
		return engine.Checkpoint{}, err
	}
	wanted, err := WantedLocks("dump "+d.Slot, img, c.Locks)
	if err != nil {
		return engine.Checkpoint{}, err
	}
	copyUp, err := img.CopyUp()
	if err != nil {
		return engine.Checkpoint{}, err
	}
	if err := WriteJSON(filepath.Join(dir, stateFile), c.State); err != nil {
		return engine.Checkpoint{}, err
	}
	if c.Reference.State, err = canonical.Digest(c.State); err != nil {
		return engine.Checkpoint{}, err
	}
	// The tree is gone, its mount namespace and overlay with it; only now may the upper move.
	if err := d.Group.Kill(ctx); err != nil {
		return engine.Checkpoint{}, err
	}
	if err := t.Reap(ctx); err != nil {
		return engine.Checkpoint{}, err
	}
	if err := d.layer(dir); err != nil {
		return engine.Checkpoint{}, err
	}
	if copyUp, err = inLayer(filepath.Join(dir, LayerDir), copyUp); err != nil {
		return engine.Checkpoint{}, err
	}
	ghosts, err := nameGhosts(dir)
	if err != nil {
		return engine.Checkpoint{}, err
	}
	for i := range copyUp {
		copyUp[i] = pathtext.Quote(copyUp[i])
	}
	return checkpoint.Seal(ctx, dir, bench.Checkpoint{
		ApiVersion: engine.APIVersion, Arm: d.Arm, Created: bench.Time(time.Now().UTC().Format(time.RFC3339Nano)),
		Workload: d.Params.Workload, Image: d.Root.SHA256,
		Layers: []string{LayerDir}, CopyUp: NonNil(copyUp), Locks: wanted,
		Reference: c.Reference, Facts: slices.Concat(d.Facts, []bench.Fact{c.Server, ghosts}, sharing, dumpFacts(dir)),
	})
}

// inLayer are the files of these that a checkpoint's layer holds. A file that is the
// image's own was open for reading at most, since the kernel copies up whatever is
// opened for writing: a slot that was started cold has the image's inode there, too, and
// a restored one is to have no other.
func inLayer(layer string, paths []string) (in []string, err error) {
	root, err := os.OpenRoot(layer)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	for _, p := range paths {
		switch _, err := root.Lstat(strings.TrimPrefix(p, "/")); {
		case err == nil:
			in = append(in, p)
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR):
			return nil, err
		}
	}
	return in, nil
}

// ghostsNamed counts the unlinked files whose names in the images were corrected.
const ghostsNamed = "unlinked.corrected-names"

// nameGhosts corrects the names of unlinked files in a checkpoint's images: who took one after it was unlinked is in the layer.
func nameGhosts(dir string) (bench.Fact, error) {
	layer, err := os.OpenRoot(filepath.Join(dir, LayerDir))
	if err != nil {
		return bench.Fact{}, err
	}
	defer layer.Close()
	n, err := criu.NameGhosts(filepath.Join(dir, ImagesDir), func(path string) (bool, error) { return holds(layer, path) })
	if err != nil {
		return bench.Fact{}, err
	}
	return engine.Known(n, "criu images, read back after the correction", engine.ViewStopped).Fact(ghostsNamed), nil
}

// holds says whether a layer has something at a path; a whiteout is nothing.
func holds(layer *os.Root, path string) (bool, error) {
	info, err := layer.Lstat(strings.TrimPrefix(path, "/"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return !ok || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0, nil
}

// layer makes the checkpoint's layer of the slot's upper one. Of a slot that was
// itself restored it is flattened with the layers below, a chain of one: the
// checkpoint needs no other, and a slot's mount is as deep after many as after one.
func (d Dumped) layer(dir string) error {
	t, dest := d.Tenancy, filepath.Join(dir, LayerDir)
	own := dest
	if len(t.Layers) > 0 {
		own = dest + ".own"
	}
	err := overlay.Seal(overlay.SealOptions{Upper: t.Upper(), Work: t.Work(), Image: d.Root.Dir(), Layers: t.Layers, Dest: own, Sync: t.Volatile, Cache: &d.Root.Hashes})
	if err != nil || own == dest {
		return err
	}
	if err := overlay.Flatten(dest, append(slices.Clone(t.Layers), own)...); err != nil {
		return err
	}
	return os.RemoveAll(own)
}

// WriteJSON writes a file of a checkpoint.
func WriteJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o600)
}
