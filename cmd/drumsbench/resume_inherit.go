//go:build linux && !elsewhere

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/arms/sweep"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// heritage is what a resumed run goes on in: slots of the interrupted attempt that are
// still good.
type heritage struct {
	engine.Inheritance
	// ws is theirs.
	ws *engine.Workspace
	// arm took them over.
	arm engine.Arm
	// givers are the steps that gave the places, in their order.
	givers []string
}

// adopt takes over the slots that are still good, of those that the rest of the plan
// takes. The first receipt of the attempt says which, and of each other that was noted
// what is wrong with it. The run's directory is held.
func (in *resumable) adopt(ctx context.Context, b *block, arm *engine.Arm, dir *record.Dir) error {
	var why []string
	if heir, ok := (*arm).(engine.Heir); ok {
		var err error
		if in.slots, why, err = in.inherit(ctx, b, heir, dir); err != nil {
			return err
		}
		if in.slots != nil {
			in.slots.arm = *arm
		} else if len(why) > 0 { // that one may have begun to take over
			if *arm, _, err = newArm(ctx, b.kind, b.loaded.Manifest.Arms, b.State); err != nil {
				return err
			}
		}
	}
	in.resume.Receipt.Facts = append(in.resume.Receipt.Facts, fact("resumed.adopted", in.slots.names()))
	if len(why) > 0 {
		in.resume.Receipt.Facts = append(in.resume.Receipt.Facts, fact("resumed.refused", strings.Join(why, "; ")))
	}
	return nil
}

func (in *resumable) inherit(ctx context.Context, b *block, heir engine.Heir, dir *record.Dir) (_ *heritage, why []string, err error) {
	claim, err := sweep.Claim(in.dir, b.State)
	if err != nil || claim == "" {
		return nil, nil, err
	}
	boot, err := record.BootID()
	if err != nil {
		return nil, nil, err
	}
	h := &heritage{ws: workspaceIn(b.globals, dir, claim)}
	open := dir.Ledger.Open()
	for _, o := range open {
		if o.Kind == "directory" && o.Claim.Path == h.ws.Work {
			h.ws.Owned = o.ID
		}
	}
	var places []bench.PlaceHandle
	for _, giver := range slices.Sorted(maps.Keys(in.givers)) {
		slot := in.givers[giver]
		place, err := h.ws.NotedPlace(slot)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = good(place, open, boot)
		}
		if err != nil {
			why = append(why, slot+": "+err.Error())
			continue
		}
		places, h.givers = append(places, place), append(h.givers, giver)
	}
	if len(places) == 0 {
		return nil, why, nil
	}
	h.ws.TakeAway = func(ctx context.Context, things []bench.OwnedThing) error {
		return sweep.Take(ctx, dir.Ledger, h.ws, things)
	}
	if h.Inheritance, err = heir.Inherit(ctx, h.ws, b.loaded.Manifest.Image, places, ownedThings(open)); err != nil {
		return nil, append(why, err.Error()), nil
	}
	return h, why, nil
}

// good requires of a noted slot what a look at the ledger and at its first process can
// say: that everything was made on this boot, and that the process lives, by a pidfd
// and its start time.
func good(place bench.PlaceHandle, open []record.Owned, boot string) error {
	if place.State != "running" || place.Tenancy == nil {
		return fmt.Errorf("%w: it is %s", engine.ErrRefused, place.State)
	}
	i := slices.IndexFunc(open, func(o record.Owned) bool { return o.Kind == "process" && o.ID == place.Tenancy.Process })
	if i < 0 || open[i].Identity == nil {
		return fmt.Errorf("%w: the ledger has no first process of it any more", engine.ErrRefused)
	}
	if open[i].Boot != boot {
		return fmt.Errorf("%w: the host was started anew since", engine.ErrDead)
	}
	first, err := procfs.Open(*open[i].Identity)
	if err != nil {
		return err
	}
	defer first.Close()
	ended, err := first.Exited()
	if err == nil && ended {
		err = fmt.Errorf("%w: its first process has ended", engine.ErrDead)
	}
	return err
}

// mount is what the mount step does where slots were taken over: their image is mounted.
func (h *heritage) mount(x *engine.Exec) (engine.Root, map[string]any) {
	// In the order of the mount step and of those that make places; the last is taken away first.
	x.OnRelease(h.ws.Release)
	if arm, ok := h.arm.(engine.Releaser); ok {
		x.OnRelease(arm.Release)
	}
	x.OnRelease(h.Root.Release)
	x.Fact(h.Root.Facts()...)
	values := map[string]any{}
	for i, p := range h.Places {
		x.OnRelease(p.Release)
		values[h.givers[i]] = p
	}
	return h.Root, values
}

// names of the slots.
func (h *heritage) names() string {
	if h == nil {
		return "none"
	}
	list := make([]string, len(h.Places))
	for i, p := range h.Places {
		list[i] = p.Name()
	}
	return strings.Join(list, ", ")
}
