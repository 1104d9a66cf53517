package sweep

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// An engine that goes on with a run keeps what it took over. Everything else is swept, and with it whoever is in a
// group that is kept and is none of those that are.
func TestSpare(t *testing.T) {
	r := begin(t)
	top := filepath.Join(groups(t)[""], "drums-"+r.id)
	tools, slot, other := filepath.Join(top, "tools"), filepath.Join(top, "slot-0"), filepath.Join(top, "slot-1")
	spare := engine.Inheritance{Things: map[int64]bool{0: true}, Slots: map[int64]bool{}}
	keep := func(id int64) int64 {
		spare.Things[id] = true
		return id
	}
	keep(r.ownGroup(top))
	keep(r.ownGroup(tools))
	spare.Slots[keep(r.ownGroup(slot))] = true
	r.ownGroup(other)
	process := func(group string) (int64, func() bool) {
		id := r.intend("process", bench.Claim{Cgroup: group})
		pid, alive := sleeper(t, group)
		identity, err := procfs.Identity(pid)
		must(t, err)
		must(t, r.d.Ledger.Bind(id, identity))
		return id, alive
	}
	first, firstLives := process(slot)
	keep(first)
	holder, holderLives := process(tools)
	keep(holder)
	_, childLives := sleeper(t, slot)  // of the slot's tree
	_, strayLives := sleeper(t, tools) // a criu that its engine left
	_, otherLives := process(other)
	folder := keep(r.own("directory", filepath.Join(r.work, "slot-0.1")))
	r.own("file", filepath.Join(r.work, "left"))

	r.want(r.sweep(Options{Held: r.d.Ledger, Spare: spare}), "taken file", "taken process", "taken cgroup")
	if !firstLives() || !holderLives() || !childLives() || strayLives() || otherLives() {
		t.Errorf("first %v, holder %v, child %v live; stray %v, of another slot %v", firstLives(), holderLives(), childLives(), strayLives(), otherLives())
	}
	if len(r.d.Ledger.Open()) != len(spare.Things) || !exists(filepath.Join(r.work, "slot-0.1")) || exists(other) {
		t.Errorf("%+v is left", r.d.Ledger.Open())
	}

	// What was taken over is taken away by its owner, part by part and more than once.
	ws := &engine.Workspace{Run: r.dir, Work: r.work, State: r.state, ID: r.id}
	for range 2 {
		must(t, Take(context.Background(), r.d.Ledger, ws, []bench.OwnedThing{{Id: folder}}))
	}
	if exists(filepath.Join(r.work, "slot-0.1")) || !firstLives() {
		t.Error("not the thing that was meant was taken")
	}
	r.die()
	r.sweep(Options{})
	if firstLives() || holderLives() || childLives() {
		t.Error("a sweep spares what an earlier one did")
	}
	r.clean()
}

// What is to be left alone has to be the run's: a forged ledger spares nobody else's, and takes nobody else's away.
func TestSpareOfOthers(t *testing.T) {
	r := begin(t)
	foreign := filepath.Join(groups(t)[""], "drums-foreign")
	makeGroup(t, foreign)
	pid, alive := sleeper(t, foreign)
	identity, err := procfs.Identity(pid)
	must(t, err)
	top := filepath.Join(groups(t)[""], "drums-"+r.id)
	r.ownGroup(top)
	process := r.intend("process", bench.Claim{Cgroup: top})
	must(t, r.d.Ledger.Bind(process, identity))
	for name, id := range map[string]int64{
		"a process in no group of the run's": process,
		"a group without the claim":          r.intend("cgroup", bench.Claim{Path: foreign}),
	} {
		_, err := Sweep(t.Context(), Options{RunDir: r.dir, State: r.state, Held: r.d.Ledger, Spare: engine.Inheritance{Things: map[int64]bool{id: true}}})
		if !errors.Is(err, engine.ErrRefused) || !alive() || !exists(top) {
			t.Errorf("%s: %v; it lives: %v", name, err, alive())
		}
		ws := &engine.Workspace{Run: r.dir, Work: r.work, State: r.state, ID: r.id}
		if err := Take(t.Context(), r.d.Ledger, ws, []bench.OwnedThing{{Id: id}}); err == nil || !alive() {
			t.Errorf("%s was taken: %v; it lives: %v", name, err, alive())
		}
	}
}

// A run's scratch directory says whose it is: a ledger that claims somebody else's, a copy of the run's own among
// them, takes nothing away. After a reboot devices have other numbers.
func TestScratchDirectoryOfAnother(t *testing.T) {
	r := begin(t)
	r.own("file", filepath.Join(r.work, "left"))
	ws := &engine.Workspace{Run: r.dir, Work: r.work, State: r.state, ID: r.id}
	must(t, Bind(ws))
	thief := filepath.Join(r.state, "runs", "thief", "fake-restore")
	must(t, os.MkdirAll(thief, 0o755))
	for _, f := range []string{record.LedgerFile, record.EventsFile, "lock"} {
		text, err := os.ReadFile(filepath.Join(r.dir, f))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		must(t, err)
		must(t, os.WriteFile(filepath.Join(thief, f), text, 0o644))
	}
	if _, err := Sweep(t.Context(), Options{RunDir: thief, State: r.state}); !errors.Is(err, engine.ErrRefused) || !exists(filepath.Join(r.work, "left")) {
		t.Errorf("a copy of the ledger sweeps the run: %v", err)
	}
	if _, err := Claim(thief, r.state); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("a copy of the ledger has the run's claim: %v", err)
	}
	note := filepath.Join(r.work, engine.WhoseFile)
	text, err := os.ReadFile(note)
	must(t, err)
	must(t, os.WriteFile(note, []byte("{"), 0o600))
	if _, err := Sweep(t.Context(), Options{RunDir: thief, State: r.state}); !errors.Is(err, engine.ErrUnknown) {
		t.Errorf("what cannot be read is no hindrance: %v", err)
	}
	var w whose
	must(t, json.Unmarshal(text, &w))
	w.Boot, w.Ledger.Dev = "another", "1"
	text, err = json.Marshal(w)
	must(t, err)
	must(t, os.WriteFile(note, text, 0o600))
	r.die()
	r.want(r.sweep(Options{}), "taken file", "taken directory")
	r.clean()
}
