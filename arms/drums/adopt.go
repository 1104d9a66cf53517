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

// Fleeting implements engine.Fleeting: whose memory comes back while it runs ends with
// the server of its pages.
func (p *place) Fleeting() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now != nil && p.now.pages != nil
}

// Adopt implements engine.Adopter.
func (a *Arm) Adopt(ctx context.Context, ws *engine.Workspace, p bench.AdoptParams) (engine.Root, engine.Place, error) {
	return tree.One(a.Inherit(ctx, ws, p.Image, []bench.PlaceHandle{p.Place}, p.Owned))
}

// Inherit implements engine.Heir.
func (a *Arm) Inherit(ctx context.Context, ws *engine.Workspace, image bench.Image, places []bench.PlaceHandle, owned []bench.OwnedThing) (engine.Inheritance, error) {
	return tree.Inherit(ctx, ws, &a.groups, a.tool, image, places, owned, a.settings.Attach, func(r *tree.Root, things tree.Owned) (engine.Root, func(bench.PlaceHandle) (engine.Place, error)) {
		mounted := &root{r}
		return mounted, func(h bench.PlaceHandle) (engine.Place, error) {
			pl, err := a.adopt(ws, mounted, h, things)
			if err == nil && ws.TakeAway != nil {
				err = pl.now.life().Alone(pl.group)
			}
			switch {
			case err != nil:
				return nil, err
			case h.State == "running":
				return &slot{pl}, nil
			case h.State == "stopped":
				return &stopped{pl}, nil
			}
			return pl, nil
		}
	})
}

// adopt takes over one place on an image.
func (a *Arm) adopt(ws *engine.Workspace, r *root, p bench.PlaceHandle, things tree.Owned) (*place, error) {
	pl := &place{arm: a, ws: ws, root: r, name: string(p.Name), next: int(p.Tenancies)}
	known, err := things.Group(p.Group)
	if err != nil {
		return nil, err
	}
	if pl.group, err = a.groups.Run.AdoptGroup(pl.name, known); err != nil {
		return nil, err
	}
	if h := p.Tenancy; h != nil {
		t, err := tree.AdoptTenancy(a.groups.Run, pl.group, things, *h, p.State)
		if err != nil {
			return nil, err
		}
		if t.Held {
			if t.Stopped, err = stoppedIn(h.From); err != nil {
				return nil, err
			}
		}
		t.Volatile = a.settings.Writes == "volatile"
		pl.now = &tenancy{Tenancy: *t}
	}
	return pl, nil
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
