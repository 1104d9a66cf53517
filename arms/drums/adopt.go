package drums

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/tree"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/checkpoint"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// handTime bounds how long the pages of a slot that is handed over may take.
const handTime = time.Minute

// Handle implements engine.Lasting. A slot whose memory comes back while it runs gets the rest of it first.
func (p *place) Handle() (bench.PlaceHandle, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// The slot outlives this process, and with it the server of its pages.
	ctx, cancel := context.WithTimeout(context.Background(), handTime)
	defer cancel()
	if err := p.now.completePages(ctx); err != nil {
		return bench.PlaceHandle{}, &engine.Error{Op: "hand over " + p.name, Err: err}
	}
	return p.arm.groups.Handle(p.name, p.next, p.root.Root, p.group, p.now.life())
}

// Adopt implements engine.Adopter.
func (a *Arm) Adopt(ctx context.Context, ws *engine.Workspace, p bench.AdoptParams) (engine.Root, engine.Place, error) {
	r, pl, err := a.adopt(ctx, ws, p)
	if err != nil {
		return nil, nil, tree.Wrapped("adopt "+string(p.Place.Name), err)
	}
	switch p.Place.State {
	case "running":
		return r, &slot{pl}, nil
	case "stopped":
		return r, &stopped{pl}, nil
	}
	return r, pl, nil
}

func (a *Arm) adopt(ctx context.Context, ws *engine.Workspace, p bench.AdoptParams) (*root, *place, error) {
	things := tree.Owned(p.Owned)
	if err := a.groups.Adopt(ws, things, p.Place); err != nil {
		return nil, nil, err
	}
	r, err := tree.AdoptRoot(ctx, ws, a.tool, p, a.settings.Attach)
	if err != nil {
		return nil, nil, err
	}
	pl := &place{arm: a, ws: ws, root: &root{r}, name: string(p.Place.Name), next: int(p.Place.Tenancies)}
	known, err := things.Group(p.Place.Group)
	if err != nil {
		return nil, nil, err
	}
	if pl.group, err = a.groups.Run.AdoptGroup(pl.name, known); err != nil {
		return nil, nil, err
	}
	if h := p.Place.Tenancy; h != nil {
		t, err := tree.AdoptTenancy(a.groups.Run, pl.group, things, *h, p.Place.State)
		if err != nil {
			return nil, nil, err
		}
		if t.Held {
			if t.Stopped, err = stoppedIn(h.From); err != nil {
				return nil, nil, err
			}
		}
		t.Volatile = a.settings.Writes == "volatile"
		pl.now = &tenancy{Tenancy: *t}
	}
	return pl.root, pl, nil
}

// stoppedIn are the inner pids that were stopped when the tree was dumped.
func stoppedIn(dir string) (map[int]bool, error) {
	pids, err := criu.OpenImages(filepath.Join(dir, tree.ImagesDir)).StoppedAtDump()
	if err != nil {
		return nil, err
	}
	stopped := map[int]bool{}
	for _, pid := range pids {
		stopped[pid] = true
	}
	return stopped, nil
}

// OpenCheckpoint implements engine.CheckpointOpener.
func (a *Arm) OpenCheckpoint(ctx context.Context, r engine.Root, dir string) (engine.Checkpoint, error) {
	mounted, ok := r.(*root)
	if !ok {
		return engine.Checkpoint{}, fmt.Errorf("open checkpoint: root of another arm: %T", r)
	}
	cp, err := checkpoint.Open(dir)
	if err != nil {
		return engine.Checkpoint{}, err
	}
	return cp, a.usable(ctx, mounted, cp)
}
