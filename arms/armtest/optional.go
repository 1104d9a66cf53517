package armtest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// The optional interfaces: an arm that has one keeps what it promises.

// adoptParams are what the ledger and a place's handle say.
func (r *run) adoptParams(p engine.Place) bench.AdoptParams {
	r.t.Helper()
	lasting, ok := p.(engine.Lasting)
	if !ok {
		r.t.Fatalf("the arm is an Adopter, and %T has no handle", p)
	}
	h, err := lasting.Handle()
	if err != nil {
		r.t.Fatalf("handle of %s: %v", p.Name(), describe(err))
	}
	open, ok := r.ws.Ledger.(interface{ Open() []record.Owned })
	if !ok {
		r.t.Fatalf("the suite's ledger is %T", r.ws.Ledger)
	}
	params := bench.AdoptParams{Image: r.h.Manifest.Image, Place: h}
	for _, o := range open.Open() {
		params.Owned = append(params.Owned, bench.OwnedThing{Id: o.ID, Kind: o.Kind, Claim: o.Claim, Identity: o.Identity})
	}
	return params
}

// Another arm takes a slot over by its handle and the ledger: running, then
// dumped, then restored and stopped. What is not what the ledger means is refused.
func testAdopt(t *testing.T, h Harness) {
	if _, ok := h.New(t).(engine.Adopter); !ok {
		return
	}
	r := begin(t, h)
	defer r.finish()
	s := r.prepared("slot-0")
	token := r.answers(s).Live.Token
	sound := r.adoptParams(s)
	if sound.Place.State != "running" || sound.Place.Tenancy == nil {
		t.Fatalf("handle of a running slot: %+v", sound.Place)
	}
	if _, _, err := r.arm.(engine.Adopter).Adopt(r.ctx(), r.ws, sound); err == nil {
		t.Error("an arm that has begun a run of its own took a slot over")
	}
	for name, change := range map[string]func(p *bench.AdoptParams){
		"another pin":                func(p *bench.AdoptParams) { p.Image.Sha256 = bench.SHA256(strings.Repeat("0", 64)) },
		"a ledger that owns nothing": func(p *bench.AdoptParams) { p.Owned = nil },
		"a folder of another inode": func(p *bench.AdoptParams) {
			for i, o := range p.Owned {
				if o.Kind == "directory" && o.Claim.Path == p.Place.Tenancy.Folder {
					other := *o.Identity
					other.Ino += "1"
					p.Owned[i].Identity = &other
				}
			}
		},
	} {
		p := sound
		p.Owned = slices.Clone(sound.Owned)
		change(&p)
		if _, _, err := h.New(t).(engine.Adopter).Adopt(r.ctx(), r.ws, p); !errors.Is(err, engine.ErrRefused) {
			t.Errorf("adopt with %s: %v, want a refusal", name, describe(err))
		}
	}
	adopt := func(p engine.Place) (engine.Root, engine.Place) {
		t.Helper()
		arm := h.New(t)
		root, place, err := arm.(engine.Adopter).Adopt(r.ctx(), r.ws, r.adoptParams(p))
		if err != nil {
			t.Fatalf("adopt: %v", describe(err))
		}
		r.arm, r.places = arm, []engine.Place{place}
		return root, place
	}
	testHeir(r, sound)
	root, place := adopt(s)
	slot, ok := place.(engine.Slot)
	if !ok {
		t.Fatalf("a running slot came back as %T", place)
	}
	if err := root.Release(r.ctx()); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("release of an adopted image: %v, want a refusal", describe(err))
	}
	if err := root.Verify(r.ctx()); err != nil {
		t.Errorf("verify an adopted image: %v", describe(err))
	}
	if r.answers(slot).Live.Token != token {
		t.Error("it is another slot")
	}
	r.judgeCold(slot)
	again := r.adoptParams(slot).Place
	if again.Tenancy == nil || again.Tenancy.Folder != sound.Place.Tenancy.Folder || again.State != "running" || again.Tenancies != sound.Place.Tenancies {
		t.Errorf("handle after the adoption: %+v, want %+v", again, sound.Place)
	}

	// The arm that took it over goes on with it: dump, restore, and on to a third.
	cp, dumped, err := slot.Dump(r.ctx(), r.dumpParams(), r.reference(slot))
	if err != nil {
		t.Fatalf("dump an adopted slot: %v", describe(err))
	}
	if state := r.adoptParams(dumped).Place.State; state != "vacant" {
		t.Errorf("a dumped place is %s", state)
	}
	// Vacant it is taken over too, twice: whoever only looks at it changes nothing.
	if _, dumped = adopt(dumped); dumped.Name() != "slot-0" {
		t.Errorf("a dumped place came back as %s", dumped.Name())
	}
	// Where v2 is the only hierarchy the limits lie below the slot's group, which the dump
	// ended, so that nothing of them is there by then. So it is here, whatever the host has.
	for _, dir := range r.adoptParams(dumped).Place.Tenancy.Limits {
		if err := cgroup.RemoveTree(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("take the limits of a dumped slot away: %v", err)
		}
	}
	root, dumped = adopt(dumped)
	switch dumped.(type) {
	case engine.Slot, engine.Stopped:
		t.Fatalf("a dumped place came back as %T", dumped)
	}
	stopped, err := r.arm.Restore(r.ctx(), r.ws, root, cp, dumped, r.restoreParams("slot-0"))
	if err != nil {
		t.Fatalf("restore in an adopted place: %v", describe(err))
	}
	r.places = []engine.Place{stopped}
	if state := r.adoptParams(stopped).Place.State; state != "stopped" {
		t.Errorf("a restored place that was not resumed is %s", state)
	}
	_, place = adopt(stopped)
	held, ok := place.(engine.Stopped)
	if !ok {
		t.Fatalf("a stopped slot came back as %T", place)
	}
	r.judgeStopped(held, cp)
	r.judgeResumed(r.resume(held), cp)
}

// An engine that goes on with a run takes its slots over whole, with what they stand on and nothing else, and
// none in which a stranger is. Its image is taken away by the workspace.
func testHeir(r *run, p bench.AdoptParams) {
	r.t.Helper()
	heir := func() (engine.Inheritance, map[int64]bool, error) {
		ws, taken := *r.ws, map[int64]bool{}
		ws.TakeAway = func(_ context.Context, things []bench.OwnedThing) error {
			for _, o := range things {
				taken[o.Id] = true
			}
			return nil
		}
		out, err := r.h.New(r.t).(engine.Heir).Inherit(r.ctx(), &ws, p.Image, []bench.PlaceHandle{p.Place}, p.Owned)
		if err == nil {
			err = out.Root.Release(r.ctx())
		}
		return out, taken, err
	}
	if _, ok := r.h.New(r.t).(engine.Heir); !ok {
		return
	}
	if group := p.Place.Group; group != "" {
		stranger := exec.Command("sleep", "600")
		if err := stranger.Start(); err != nil {
			r.t.Fatal(err)
		}
		err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(stranger.Process.Pid)), 0)
		if err == nil {
			if _, _, ierr := heir(); !errors.Is(ierr, engine.ErrRefused) {
				r.t.Errorf("a slot with a stranger in its group: %v, want a refusal", describe(ierr))
			}
		}
		stranger.Process.Kill()
		stranger.Wait()
		if err != nil {
			r.t.Fatal(err)
		}
	}
	out, taken, err := heir()
	if err != nil || len(out.Places) != 1 || out.Places[0].Name() != string(p.Place.Name) {
		r.t.Fatalf("inherit: %v, %+v", describe(err), out.Places)
	}
	for _, o := range p.Owned {
		switch image := o.Kind == "mount" && o.Claim.Path == p.Place.Image; {
		case image && !taken[o.Id]:
			r.t.Errorf("the released image leaves its mount, %v", taken)
		case (image || o.Id == p.Place.Tenancy.Process && o.Kind == "process" || o.Claim.Path == p.Place.Tenancy.Folder || o.Claim.Path == r.ws.Work) && !out.Things[o.Id]:
			r.t.Errorf("%s %s is none of what the slot stands on: %v", o.Kind, o.Claim.Path, out.Things)
		case taken[o.Id] && (o.Claim.Path == p.Place.Tenancy.Folder || o.Claim.Path == r.ws.Work || o.Kind == "cgroup" || o.Kind == "process"):
			r.t.Errorf("the released image takes %s %s away", o.Kind, o.Claim.Path)
		}
	}
	for id := range out.Slots {
		if !out.Things[id] {
			r.t.Errorf("group %d is a slot's and none of the things", id)
		}
	}
}

// A slot that can tell that its first process has ended does: while it lives, and (testVacated) once it does not.
func testMortal(r *run, s engine.Slot) {
	if m, ok := s.(engine.Mortal); ok {
		if err := m.Alive(); err != nil {
			r.t.Errorf("a slot that runs: %v", describe(err))
		}
	}
}

// A later run opens a checkpoint by its folder; what Restore would refuse is refused here.
func testOpenCheckpoint(t *testing.T, h Harness) {
	if _, ok := h.New(t).(engine.CheckpointOpener); !ok {
		return
	}
	cp := h.checkpoint(t)
	r := begin(t, h)
	defer r.finish()
	opener := r.arm.(engine.CheckpointOpener)
	opened, err := opener.OpenCheckpoint(r.ctx(), r.root, cp.Dir)
	if err != nil {
		t.Fatalf("open checkpoint: %v", describe(err))
	}
	if opened.Handle.Image != cp.Handle.Image || opened.Handle.Reference.State != cp.Handle.Reference.State {
		t.Errorf("another checkpoint was opened: %+v", opened.Handle)
	}
	r.judgeResumed(r.resume(r.restore(opened, nil, "slot-1")), opened)
	if _, err := opener.OpenCheckpoint(r.ctx(), r.root, filepath.Join(r.dir, "nowhere")); err == nil {
		t.Error("a checkpoint was opened where there is none")
	}
	victim := filepath.Join(cp.Dir, cp.Handle.Files[0].Path)
	if err := os.Rename(victim, filepath.Join(r.dir, "aside")); err != nil {
		t.Fatal(err)
	}
	if _, err := opener.OpenCheckpoint(r.ctx(), r.root, cp.Dir); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("open a checkpoint that lacks a file: %v, want a refusal", describe(err))
	}
	if err := os.Rename(filepath.Join(r.dir, "aside"), victim); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(r.ctx())
	cancel()
	if _, err := opener.OpenCheckpoint(ctx, r.root, cp.Dir); !errors.Is(err, context.Canceled) {
		t.Errorf("open a checkpoint with a cancelled context: %v", describe(err))
	}
}
