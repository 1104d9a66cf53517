package drums

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/docker/go-units"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/tree"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/checkpoint"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Dump implements engine.Slot. While criu holds the tree stopped, the census is
// taken and judged: what it finds vetoes the dump, and the slot runs on. After
// the dump the tree is gone and its upper layer is sealed.
func (s *slot) Dump(ctx context.Context, p bench.DumpParams, ref engine.GuestReference) (engine.Checkpoint, engine.Place, error) {
	cp, err := s.dump(ctx, p, ref)
	if err != nil {
		return engine.Checkpoint{}, nil, tree.Wrapped("dump "+s.name, err)
	}
	return cp, s.place, nil
}

func (s *slot) dump(ctx context.Context, p bench.DumpParams, ref engine.GuestReference) (engine.Checkpoint, error) {
	t := s.now
	if err := t.life().Dumpable(s.name); err != nil {
		return engine.Checkpoint{}, err
	}
	if err := t.completePages(ctx); err != nil {
		return engine.Checkpoint{}, err
	}
	t.Policy, t.Exclude = p.Policy, tree.NonNil(p.Exclude)
	ghost, err := units.RAMInBytes(string(p.Policy.GhostLimit))
	if err != nil {
		return engine.Checkpoint{}, err
	}
	return tree.Draft(s.ws, s.name, func(dir string) (engine.Checkpoint, error) {
		o := criu.DumpOptions{
			Pid: t.Pid, ImagesDir: filepath.Join(dir, tree.ImagesDir), WorkDir: filepath.Join(dir, "criu"),
			FileLocks: s.arm.settings.Locks != "refuse", TCPClose: p.Policy.EstablishedTCP == "close", GhostLimit: ghost,
		}
		var c tree.Census
		var network bench.Fact
		attempts, err := tree.Attempts(ctx, s.name, "criu", []string{o.ImagesDir, o.WorkDir}, func() (err error) {
			c, network, err = s.dumpOnce(ctx, dir, o, ref)
			return err
		})
		if err != nil {
			return engine.Checkpoint{}, err
		}
		if c.Reference.Processes == nil {
			return engine.Checkpoint{}, errors.New("criu dumped the tree without saying that it was stopped; no census was taken")
		}
		defer engine.StartSpan(ctx, "seal")()
		if err := checkpoint.KeepScreen(dir, ref); err != nil {
			return engine.Checkpoint{}, err
		}
		facts := append(s.arm.tool.Facts(), s.arm.host...)
		if s.arm.settings.Pages == workingSet {
			changed, err := criu.Unreserve(o.ImagesDir)
			if err != nil {
				return engine.Checkpoint{}, err
			}
			facts = append(facts, engine.Known(changed, "criu images, read back after the correction", engine.ViewStopped).Fact("pages.unreserved-mappings"))
		}
		if s.arm.settings.Zeros == zerosLeft {
			dropped, err := criu.DropZeros(o.ImagesDir)
			if err != nil {
				return engine.Checkpoint{}, err
			}
			facts = append(facts, engine.Known(dropped, "criu images, read back after they were taken out", engine.ViewStopped).Fact("pages.zeros-left-out"))
		}
		return tree.Dumped{
			Arm: Kind, Slot: s.name, Params: p, Root: s.root.Root, Tenancy: t.life(), Group: s.group, Census: c, Sharing: s.arm.settings.Sharing,
			Facts: append(facts, attempts, networkFact(criu.OpenImages(o.ImagesDir)), plainImages(network, criu.OpenImages(o.ImagesDir))),
		}.Seal(ctx, dir)
	})
}

// dumpOnce is one dump, with the census of the tree while criu holds it stopped.
func (s *slot) dumpOnce(ctx context.Context, dir string, o criu.DumpOptions, ref engine.GuestReference) (c tree.Census, network bench.Fact, err error) {
	defer engine.StartSpan(ctx, "criu")()
	err = s.arm.besideCRIU(s.ws, dir, func() error {
		leave, err := s.now.Limits.JoinThread()
		if err != nil {
			return err
		}
		o.Started = leave
		err = criu.Dump(ctx, s.arm.command(s.helperBirth(s.now)), o, func(_ context.Context, n criu.Notification) error {
			if n.Script != criu.ScriptNetworkLock { // all tasks are seized
				return nil
			}
			defer engine.StartSpan(ctx, "census")()
			s.now.tracer = n.CRIU
			defer func() { s.now.tracer = 0 }()
			var err error
			if c, err = s.place.tree(s.now).Census(ref); err == nil {
				network = plainNetwork(s.now.Pid)
			}
			return err
		})
		return errors.Join(err, leave())
	})
	return c, network, s.keepLog(o.WorkDir, err)
}

// networkFact says whether CRIU dumped the network namespace: it returns 0
// without, for instance when it was told that the namespace is empty.
func networkFact(img criu.Images) bench.Fact {
	f := bench.Fact{Name: engine.NetworkPreserved, View: engine.ViewHost}
	images, err := img.Network()
	if err != nil {
		f.Reason = err.Error()
		return f
	}
	have := map[string]int64{}
	for _, i := range images {
		have[i.Kind] += i.Size
	}
	// A slot whose network is lo alone has no route of its own to save: lo's come
	// with its addresses. The gate on the running slot compares them all.
	for _, kind := range []string{"netdev", "ifaddr", "route", "rule"} {
		if _, ok := have[kind]; !ok {
			f.Reason = fmt.Sprintf("criu wrote no %s image", kind)
			return f
		}
	}
	for _, kind := range []string{"netdev", "ifaddr"} {
		// An image without an entry is its magic numbers only: 8 bytes.
		if have[kind] <= 8 {
			f.Reason = fmt.Sprintf("criu's %s image has no entry", kind)
			return f
		}
	}
	f.Known, f.Value, f.Source = true, fmt.Sprint(have), "criu images, bytes by kind"
	return f
}
