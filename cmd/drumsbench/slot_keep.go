//go:build linux && !elsewhere

package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// keepSlot makes a slot by hand of what a run did not release. Its things stay in
// the run's ledger, which the slot's commands go on with. After an error sweep
// takes the run's things away.
func keepSlot(g *globals, run *record.Dir, kind string, settings map[string]string, ws *engine.Workspace, res engine.Result) (_ bench.SlotHandle, err error) {
	none := bench.SlotHandle{}
	defer func() {
		if err != nil {
			err = &engine.Error{Op: "keep slot of " + run.Path, Err: err, Hint: "drumsbench sweep " + run.Path + " takes away what the run left"}
		}
	}()
	m, manifest, err := record.ReadManifest(run.Path)
	if err != nil {
		return none, err
	}
	name, err := freeName(g.State, string(m.Name)+"-"+res.Kept.Slot)
	if err != nil {
		return none, err
	}
	version, err := engineVersion()
	if err != nil {
		return none, err
	}
	boot, err := record.BootID()
	if err != nil {
		return none, err
	}
	h := &hand{globals: g, name: name, ledger: run.Ledger, manifest: m}
	if h.dir, err = record.CreateChain(slotFolder(g.State, name)); err != nil {
		return none, err
	}
	defer func() { err = errors.Join(err, h.dir.Close()) }()
	now := engine.Timestamp(time.Now())
	h.handle = bench.SlotHandle{
		ApiVersion: engine.APIVersion, Name: bench.Name(name), Arm: kind, Created: now, State: "vacant", Boot: boot,
		Engine: version, Server: m.Guest.Server.Sha256, Image: m.Image.Sha256, Manifest: manifest,
		Settings: settings, Claim: ws.ID, Work: ws.Work, Run: run.Path,
	}
	var host bench.SHA256
	for file, digest := range map[string]*bench.SHA256{record.ManifestFile: &manifest, record.PlanFile: &h.handle.Plan, record.HostFile: &host} {
		if *digest, err = h.dir.CopyFile(run.Path, file); err != nil {
			return none, err
		}
	}
	if h.handle.Workload, err = compile.Workload(m); err != nil {
		return none, err
	}
	if err := h.begin(host); err != nil {
		return none, err
	}
	if err := h.note(res); err != nil {
		return none, err
	}
	return h.handle, h.write("0.keep", nil, done{Result: res}, time.Now())
}

// printKept names the slots that stay, with the commands to look at them.
func printKept(g *globals, kept []bench.SlotHandle) error {
	var b strings.Builder
	for _, h := range kept {
		if g.json() {
			if err := printJSON(g.Stderr, struct {
				Kept bench.SlotHandle `json:"kept"`
			}{h}); err != nil {
				return err
			}
			continue
		}
		fmt.Fprintf(&b, "kept    slot %s: %s\n  drumsbench slot status %s\n", h.Name, describe(h), h.Name)
		if h.State == "running" {
			fmt.Fprintf(&b, "  drumsbench slot exec %s -- COMMAND\n", h.Name)
		}
		if h.Checkpoint != nil {
			fmt.Fprintf(&b, "  drumsbench slot reset %s\n", h.Name)
		}
		fmt.Fprintf(&b, "  drumsbench slot release %s\n", h.Name)
	}
	return printText(g.Stdout, b.String())
}
