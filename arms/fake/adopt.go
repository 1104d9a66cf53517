package fake

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Outliving is an Arm whose slots outlive it: another Outliving of this process
// takes them over (engine.Adopter). It is how the conformance suite and the steps
// see that contract without privilege. A slot is in this process's memory all the
// same and ends with it, so the program has plain Arms only and says that their
// slots do not last.
type Outliving struct{ *Arm }

// lives are the tenancies and roots of this process by the identity of their folder.
var lives struct {
	sync.Mutex
	tenancies map[bench.Identity]*tenancy
	roots     map[bench.Identity]*root
}

// remember puts a folder's owner where Adopt finds it.
func remember[T any](in *map[bench.Identity]T, id bench.Identity, what T) {
	lives.Lock()
	defer lives.Unlock()
	if *in == nil {
		*in = map[bench.Identity]T{}
	}
	(*in)[id] = what
}

func forget[T any](in map[bench.Identity]T, id bench.Identity) {
	lives.Lock()
	defer lives.Unlock()
	delete(in, id)
}

func identity(path string) (bench.Identity, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return bench.Identity{}, &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	return bench.Identity{Dev: bench.Int64(strconv.FormatUint(uint64(st.Dev), 10)), Ino: bench.Int64(strconv.FormatUint(st.Ino, 10))}, nil
}

// Handle implements engine.Lasting.
func (p *place) Handle() (bench.PlaceHandle, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := bench.PlaceHandle{Name: bench.Name(p.name), State: "vacant", Tenancies: int64(p.next), Image: p.root.dir.path}
	t := p.now
	if t == nil {
		return h, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	h.Tenancy = &bench.TenancyHandle{Folder: t.dir.path, Process: t.file.id, Limits: []string{}, Layers: []string{}, Policy: t.policy, Exclude: nonNil(t.exclude)}
	switch {
	case t.world == nil: // dumped
	case t.restored && t.since.IsZero():
		h.State = "stopped"
	default:
		h.State = "running"
	}
	return h, nil
}

// Inherit implements engine.Heir. One place at a time: each of another Outliving.
func (a Outliving) Inherit(ctx context.Context, ws *engine.Workspace, image bench.Image, places []bench.PlaceHandle, things []bench.OwnedThing) (out engine.Inheritance, err error) {
	if len(places) != 1 {
		return out, &engine.Error{Op: "adopt slots", Err: fmt.Errorf("%w: %d places, one is taken over at a time", engine.ErrRefused, len(places))}
	}
	root, place, err := a.Adopt(ctx, ws, bench.AdoptParams{Image: image, Place: places[0], Owned: things})
	if err != nil {
		return out, err
	}
	adopted := root.(adoptedRoot)
	adopted.drop = func(ctx context.Context) error {
		var mine []bench.OwnedThing
		for _, o := range things {
			if o.Kind == "directory" && o.Claim.Path == places[0].Image {
				mine = append(mine, o)
			}
		}
		return ws.TakeAway(ctx, mine)
	}
	out = engine.Inheritance{Root: adopted, Places: []engine.Place{place}, Things: map[int64]bool{}, Slots: map[int64]bool{}}
	for _, o := range things {
		of := o.Claim.Path == ws.Work || o.Claim.Path == places[0].Image
		if t := places[0].Tenancy; t != nil {
			of = of || o.Claim.Path == t.Folder || strings.HasPrefix(o.Claim.Path, t.Folder+"/") || o.Id == t.Process
		}
		if of {
			out.Things[o.Id] = true
		}
	}
	return out, nil
}

// Adopt implements engine.Adopter.
func (a Outliving) Adopt(ctx context.Context, ws *engine.Workspace, p bench.AdoptParams) (engine.Root, engine.Place, error) {
	r, pl, err := a.adopt(ctx, ws, p)
	if err != nil {
		return nil, nil, &engine.Error{Op: "adopt " + string(p.Place.Name), Err: err, Hint: "release what is left, and make the slot again"}
	}
	switch p.Place.State {
	case "running":
		return r, &slot{pl}, nil
	case "stopped":
		return r, &stopped{pl}, nil
	}
	return r, pl, nil
}

func (a Outliving) adopt(ctx context.Context, ws *engine.Workspace, p bench.AdoptParams) (engine.Root, *place, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	a.mu.Lock()
	busy := a.slots > 0 || a.images > 0
	a.mu.Unlock()
	if busy {
		return nil, nil, errors.New("the arm has begun a run of its own")
	}
	id, err := owned(p.Owned, p.Place.Image)
	if err != nil {
		return nil, nil, err
	}
	lives.Lock()
	image := lives.roots[id]
	lives.Unlock()
	if image == nil {
		return nil, nil, fmt.Errorf("%w: nobody here has the image %s", engine.ErrRefused, p.Place.Image)
	}
	if p.Image.Sha256 != image.pin {
		return nil, nil, fmt.Errorf("%w: the image has sha256 %s, the pin is %s", engine.ErrRefused, image.pin, p.Image.Sha256)
	}
	pl := &place{arm: a.Arm, ws: ws, root: image, name: string(p.Place.Name), next: int(p.Place.Tenancies)}
	if p.Place.Tenancy != nil {
		if id, err = owned(p.Owned, p.Place.Tenancy.Folder); err != nil {
			return nil, nil, err
		}
		lives.Lock()
		pl.now = lives.tenancies[id]
		lives.Unlock()
		if pl.now == nil {
			return nil, nil, fmt.Errorf("%w: nobody here has the slot in %s", engine.ErrRefused, p.Place.Tenancy.Folder)
		}
	}
	image.enter(pl.name)
	return adoptedRoot{root: image}, pl, nil
}

// owned is the identity of a directory that the ledger owns; what has its name must be that one.
func owned(list []bench.OwnedThing, path string) (bench.Identity, error) {
	for _, o := range list {
		if o.Kind != "directory" || o.Claim.Path != path || o.Identity == nil {
			continue
		}
		have, err := identity(path)
		if err != nil || have != *o.Identity {
			return have, fmt.Errorf("%w: %s is gone, or another one has its name (%v)", engine.ErrRefused, filepath.Base(path), err)
		}
		return have, nil
	}
	return bench.Identity{}, fmt.Errorf("%w: the ledger has no identity for %s", engine.ErrRefused, path)
}

// adoptedRoot is an image that another arm mounted.
type adoptedRoot struct {
	*root
	// drop takes it away; nil where who mounted it does.
	drop func(context.Context) error
}

// Release implements engine.Root: who mounted it releases it, or sweep does.
func (r adoptedRoot) Release(ctx context.Context) error {
	if r.drop != nil {
		return r.drop(ctx)
	}
	return &engine.Error{Op: "release image", Err: fmt.Errorf("%w: it was mounted by an earlier command", engine.ErrRefused), Hint: "sweep takes away what a ledger owns"}
}

// mountedRoot is a root of this arm, adopted or not.
func mountedRoot(r engine.Root) (*root, bool) {
	switch v := r.(type) {
	case *root:
		return v, true
	case adoptedRoot:
		return v.root, true
	}
	return nil, false
}

// Alive implements engine.Mortal: the guest server is the first process.
func (s *slot) Alive() error {
	dead := func(how string) error {
		return &engine.Error{Op: "watch " + s.name, Err: fmt.Errorf("%w: %s", engine.ErrDead, how)}
	}
	t := s.tenancy()
	if t == nil {
		return dead("nothing runs there")
	}
	t.mu.Lock()
	server, world := t.server, t.world
	t.mu.Unlock()
	switch {
	case world == nil:
		return dead("its tree has ended")
	case server == nil:
		return dead("its first process exited with 1 before it listened")
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	if server.ended {
		return dead("its first process exited with 0")
	}
	return nil
}
