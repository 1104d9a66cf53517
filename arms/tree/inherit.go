package tree

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Inherit takes over the image and the places of one run, as engine.Heir says. on
// makes an arm's root, and what takes a place on it over.
func Inherit(ctx context.Context, ws *engine.Workspace, groups *Groups, tool criu.Tool, image bench.Image, places []bench.PlaceHandle, owned []bench.OwnedThing, method string,
	on func(*Root, Owned) (engine.Root, func(bench.PlaceHandle) (engine.Place, error))) (out engine.Inheritance, err error) {
	if len(places) == 0 {
		return out, &engine.Error{Op: "adopt slots", Err: fmt.Errorf("%w: there is none", engine.ErrUsage)}
	}
	things := OwnedOf(owned)
	of := func(h bench.PlaceHandle, err error) error { return Wrapped("adopt "+string(h.Name), err) }
	if err := groups.Adopt(ws, things, places...); err != nil {
		return out, of(places[0], err)
	}
	mounted, err := AdoptRoot(ctx, ws, tool, image, places[0].Image, things, method)
	if err != nil {
		return out, of(places[0], err)
	}
	out.Things, out.Slots = things.used, map[int64]bool{}
	var take func(bench.PlaceHandle) (engine.Place, error)
	out.Root, take = on(mounted, things)
	for _, h := range places {
		p, err := take(h)
		if err == nil {
			err = things.slots(h, out.Slots)
		}
		if err != nil {
			return engine.Inheritance{}, of(h, err)
		}
		out.Places = append(out.Places, p)
	}
	return out, nil
}

// slots adds the groups that hold a place's processes: its own, and those of its limits.
func (o Owned) slots(h bench.PlaceHandle, to map[int64]bool) error {
	paths := []string{h.Group}
	if h.Tenancy != nil {
		paths = append(paths, h.Tenancy.Limits...)
	}
	for _, path := range paths {
		k, err := o.Group(path)
		if err != nil {
			return err
		}
		to[k.ID] = true
	}
	return nil
}

// Alone requires that everybody in the group of a tenancy that lives is of its pid
// namespace: a criu that its engine left behind is not, and goes on with what it was
// told.
func (t *Tenancy) Alone(group *cgroup.Group) error {
	if t == nil || t.Pid == 0 {
		return nil
	}
	if scope := t.Limits.Scope(); scope != nil {
		group = scope
	}
	home, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", t.Pid))
	if err != nil {
		return err
	}
	pids, err := group.Pids()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
		switch {
		case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ESRCH): // it has ended meanwhile
		case err != nil:
			return err
		case own != home:
			return Refused("pid %d is in the slot's control group and not in its pid namespace", pid)
		}
	}
	return nil
}

// One is what Adopt returns of one place.
func One(out engine.Inheritance, err error) (engine.Root, engine.Place, error) {
	if err != nil {
		return nil, nil, err
	}
	if len(out.Places) != 1 {
		return nil, nil, errors.New("adopt: not one place")
	}
	return out.Root, out.Places[0], nil
}
