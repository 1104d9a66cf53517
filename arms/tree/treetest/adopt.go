package treetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Made is a slot that one arm made, as another arm finds it.
type Made struct {
	m    bench.Manifest
	ws   *engine.Workspace
	dir  *record.Dir
	root engine.Root
	Arm  Arm
	Slot engine.Slot
}

// Make has a fresh arm make a slot of a manifest.
func (h Harness) Make(t *testing.T, m bench.Manifest) Made {
	t.Helper()
	s := Made{m: m}
	s.ws, s.dir = h.Workspace(t)
	s.Arm = h.New(t, s.m)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	if s.root, err = s.Arm.Mount(ctx, s.ws, bench.MountParams{Image: s.m.Image}); err != nil {
		t.Fatal(err)
	}
	s.Slot, err = s.Arm.Provision(ctx, s.ws, s.root, nil, bench.ProvisionParams{
		Slot: "slot-0", Network: s.m.Network, Guest: s.m.Guest, Resources: s.m.Resources, Policy: *s.m.Checkpoint, Exclude: []string{},
	})
	if err != nil {
		t.Fatal(errors.Join(err, s.root.Release(ctx), s.Arm.Release(ctx)))
	}
	return s
}

// params are what a handle says.
func (s Made) params(t *testing.T) bench.AdoptParams {
	t.Helper()
	h, err := s.Slot.(engine.Lasting).Handle()
	if err != nil {
		t.Fatal(err)
	}
	p := bench.AdoptParams{Image: s.m.Image, Place: h}
	for _, o := range s.dir.Ledger.Open() {
		p.Owned = append(p.Owned, bench.OwnedThing{Id: o.ID, Kind: o.Kind, Claim: o.Claim, Identity: o.Identity})
	}
	return p
}

// Release takes everything away: the place by whoever has it, then what it stands on.
func (s Made) Release(t *testing.T, place engine.Place, arm Arm) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, f := range []func(context.Context) error{place.Release, s.root.Release, arm.Release, s.ws.Release} {
		if err := f(ctx); err != nil {
			t.Error(err)
		}
	}
	if open := s.dir.Ledger.Open(); len(open) > 0 {
		t.Errorf("the ledger still owns %+v", open)
	}
}

// Ready waits for the guest server of a slot that either arm sees.
func (s Made) Ready(t *testing.T, slot engine.Slot) guest.Probe {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		probe, err := guest.New(slot.Dial, int(s.m.Guest.Server.Port), guest.DefaultLimits()).Probe(ctx)
		if err == nil && probe.Phase == guest.PhaseRunning {
			return probe
		}
		if ctx.Err() != nil {
			t.Fatalf("the guest does not run: %v %+v", err, probe)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Adopt: another arm takes the slot over, sees the same tree and limits, talks to
// its server, and ends it.
func (h Harness) Adopt(t *testing.T) {
	s := h.Make(t, h.Manifest(t))
	s.Ready(t, s.Slot)
	arm := h.New(t, s.m)
	root, place, err := arm.Adopt(t.Context(), s.ws, s.params(t))
	if err != nil {
		s.Release(t, s.Slot, s.Arm)
		t.Fatal(err)
	}
	adopted, ok := place.(engine.Slot)
	if !ok {
		t.Fatalf("a running slot came back as %T", place)
	}
	if err := adopted.(engine.Mortal).Alive(); err != nil {
		t.Error(err)
	}
	if err := root.Verify(t.Context()); err != nil {
		t.Error(err)
	}
	if err := root.Release(t.Context()); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("release of the adopted image: %v", err)
	}
	s.Ready(t, adopted)
	aspects := []engine.Aspect{engine.AspectLimits, engine.AspectMounts, engine.AspectProcesses, engine.AspectLocks, engine.AspectEnclosure}
	before, after := s.Slot.Observe(t.Context(), aspects...), adopted.Observe(t.Context(), aspects...)
	want, _ := before.Limits.Get()
	have, ok := after.Limits.Get()
	if !ok || !slices.Equal(have.Tasks, want.Tasks) || len(have.Outside) > 0 || have.Memory != want.Memory {
		t.Errorf("limits %+v (%s), want %+v", have, after.Limits.Reason(), want)
	}
	for name, pair := range map[string][2]any{
		"mounts":    {first(before.Mounts), first(after.Mounts)},
		"processes": {first(before.Processes), first(after.Processes)},
		"locks":     {first(before.Locks), first(after.Locks)},
		"enclosure": {first(before.Enclosure), first(after.Enclosure)},
	} {
		if a, b := fmt.Sprint(pair[0]), fmt.Sprint(pair[1]); a != b {
			t.Errorf("%s: %s, want %s", name, b, a)
		}
	}
	// Its handle is the one that it came from.
	again, err := adopted.(engine.Lasting).Handle()
	if err != nil || fmt.Sprint(again.Tenancy) != fmt.Sprint(s.params(t).Place.Tenancy) || again.State != "running" {
		t.Errorf("handle %+v, %v", again, err)
	}
	s.Release(t, adopted, arm)
}

func first[T any](r engine.Reading[T]) any {
	v, ok := r.Get()
	if !ok {
		return "unknown: " + r.Reason()
	}
	return v
}

// AdoptRefuses: what is not what the ledger means is refused; a first process that
// ended is said to have, and its readings are unknown.
func (h Harness) AdoptRefuses(t *testing.T) {
	s := h.Make(t, h.Manifest(t))
	s.Ready(t, s.Slot)
	sound := s.params(t)
	pick := func(p bench.AdoptParams, kind, path string) *bench.Identity {
		t.Helper()
		for i, o := range p.Owned {
			if o.Kind == kind && (path == "" || o.Claim.Path == path) && (kind != "process" || o.Id == sound.Place.Tenancy.Process) { // none that an arm keeps beside the slot
				id := *o.Identity
				p.Owned[i].Identity = &id
				return &id
			}
		}
		t.Fatalf("the ledger has no %s %s", kind, path)
		return nil
	}
	for name, c := range map[string]struct {
		change func(p *bench.AdoptParams)
		text   string
	}{
		"group of another inode":     {func(p *bench.AdoptParams) { pick(*p, "cgroup", p.Place.Group).Ino += "1" }, "another group has its name"},
		"ownership of another inode": {func(p *bench.AdoptParams) { pick(*p, "cgroup", p.Place.Ownership).Ino += "1" }, "another group has its name"},
		"tools of another device":    {func(p *bench.AdoptParams) { pick(*p, "cgroup", p.Place.Tools).Dev += "1" }, "another group has its name"},
		"limits of another inode":    {func(p *bench.AdoptParams) { pick(*p, "cgroup", p.Place.Tenancy.Limits[0]).Ino += "1" }, "another group has its name"},
		"folder of another inode":    {func(p *bench.AdoptParams) { pick(*p, "directory", p.Place.Tenancy.Folder).Ino += "1" }, "another one has its name"},
		"scratch of another inode":   {func(p *bench.AdoptParams) { pick(*p, "directory", s.ws.Work).Ino += "1" }, "another one has its name"},
		"image of another device":    {func(p *bench.AdoptParams) { pick(*p, "mount", p.Place.Image).Dev += "1" }, "is not what was mounted there"},
		"loop of another file":       {func(p *bench.AdoptParams) { pick(*p, "loop", "").Ino += "1" }, "was replaced"},
		"another pin":                {func(p *bench.AdoptParams) { p.Image.Sha256 = bench.SHA256(strings.Repeat("0", 64)) }, "changed since it was mounted"},
		"a group that is not owned":  {func(p *bench.AdoptParams) { p.Place.Group += "x" }, "no identity for cgroup"},
		"a process of nobody":        {func(p *bench.AdoptParams) { p.Place.Tenancy.Process = 0 }, "no process with number"},
		"a process of the host": {func(p *bench.AdoptParams) {
			id := pick(*p, "process", "")
			*id = hostProcess(t)
		}, "is not in the slot's control group"},
		"no limits": {func(p *bench.AdoptParams) { p.Place.Tenancy.Limits = nil }, "no group of the slot's"},
	} {
		t.Run(name, func(t *testing.T) {
			p := sound
			p.Owned = slices.Clone(sound.Owned)
			tenancy := *sound.Place.Tenancy
			tenancy.Limits = slices.Clone(tenancy.Limits)
			p.Place.Tenancy = &tenancy
			c.change(&p)
			_, _, err := h.New(t, s.m).Adopt(t.Context(), s.ws, p)
			if !errors.Is(err, engine.ErrRefused) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v, want %q", err, c.text)
			}
		})
	}
	if _, _, err := s.Arm.Adopt(t.Context(), s.ws, sound); err == nil {
		t.Error("an arm that has begun a run of its own took a slot over")
	}

	// Another start time is another process: the slot's is gone.
	p := s.params(t)
	pick(p, "process", "").StartTicks += "1"
	dead := func(p bench.AdoptParams, arm Arm) engine.Slot {
		t.Helper()
		_, place, err := arm.Adopt(t.Context(), s.ws, p)
		if err != nil {
			t.Fatal(err)
		}
		slot := place.(engine.Slot)
		if err := slot.(engine.Mortal).Alive(); !errors.Is(err, engine.ErrDead) || !strings.Contains(err.Error(), "which started at tick") {
			t.Errorf("alive: %v", err)
		}
		o := slot.Observe(t.Context(), engine.AspectProcesses, engine.AspectMounts)
		if _, ok := o.Processes.Get(); ok {
			t.Error("a dead slot has processes")
		}
		if _, err := slot.Dial(t.Context(), int(s.m.Guest.Server.Port)); !errors.Is(err, engine.ErrDead) {
			t.Errorf("dial: %v", err)
		}
		return slot
	}
	dead(p, h.New(t, s.m))

	// One that dies while it is adopted is unknown to its observer from then on.
	arm := h.New(t, s.m)
	_, place, err := arm.Adopt(t.Context(), s.ws, s.params(t))
	if err != nil {
		t.Fatal(err)
	}
	dying := place.(engine.Slot)
	if err := syscall.Kill(int(pick(sound, "process", "").Pid), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if dying.(engine.Mortal).Alive() != nil {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err := dying.(engine.Mortal).Alive(); !errors.Is(err, engine.ErrDead) {
		t.Errorf("alive: %v", err)
	}
	if _, ok := dying.Observe(t.Context(), engine.AspectToolConfig).ToolConfig.Get(); ok {
		t.Error("a slot whose first process ended has a reading")
	}
	s.Release(t, dying, arm)
}

// hostProcess is the identity of a process that is not in any slot.
func hostProcess(t *testing.T) bench.Identity {
	t.Helper()
	id, err := procfs.Identity(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	return id
}
