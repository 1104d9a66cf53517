package record

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// begun is a directory with a chain that has not ended and a ledger.
func begun(t *testing.T) string {
	t.Helper()
	d, err := Create(filepath.Join(t.TempDir(), "slot"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Ledger.Intend("directory", bench.Claim{Path: "/work"})
	err = errors.Join(err, d.Events.Append(bench.Receipt{Event: "run_start"}), d.Events.Append(bench.Receipt{Event: "step", Step: "0.a"}), d.Close())
	if err != nil {
		t.Fatal(err)
	}
	return d.Path
}

// lines of the chain, which has to be whole.
func chainOf(t *testing.T, dir string) []bench.Receipt {
	t.Helper()
	problems, err := VerifyChain(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if p.Kind != Cut {
			t.Error(p)
		}
	}
	receipts, _, err := ReadEvents(dir)
	if err != nil {
		t.Fatal(err)
	}
	return receipts
}

func TestReopenGoesOn(t *testing.T) {
	dir := begun(t)
	for range 3 {
		d, err := Reopen(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Reopen(dir); !errors.Is(err, ErrRunning) {
			t.Errorf("a second one: %v", err)
		}
		if len(d.Ledger.Open()) != 1 {
			t.Errorf("owned %+v", d.Ledger.Open())
		}
		stored, err := d.Evidence.Put("output", []byte("text"))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(d.Events.Append(bench.Receipt{Event: "step", Step: "more", Evidence: []bench.Evidence{stored}}), d.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(chainOf(t, dir)); n != 5 {
		t.Errorf("%d lines", n)
	}
}

func TestReopenCutsTornLine(t *testing.T) {
	dir := begun(t)
	path := filepath.Join(dir, EventsFile)
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(`{"seq":2,"half`)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	d, err := Reopen(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(d.Events.Append(bench.Receipt{Event: "step", Step: "1.b"}), d.Close()); err != nil {
		t.Fatal(err)
	}
	if got := chainOf(t, dir); len(got) != 3 || got[2].Step != "1.b" || got[2].Seq != 2 {
		t.Errorf("%+v", got)
	}
}

func TestReopenRefuses(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		"edited": func(dir string) error {
			path := filepath.Join(dir, EventsFile)
			text, err := os.ReadFile(path)
			return errors.Join(err, os.WriteFile(path, bytes.Replace(text, []byte("run_start"), []byte("run_stare"), 1), 0o644))
		},
		"ended": func(dir string) error {
			d, err := Reopen(dir)
			if err != nil {
				return err
			}
			return errors.Join(d.Events.Append(bench.Receipt{Event: "run_end"}), d.Close())
		},
		"empty": func(dir string) error { return os.Truncate(filepath.Join(dir, EventsFile), 0) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := begun(t)
			if err := spoil(dir); err != nil {
				t.Fatal(err)
			}
			before, err := os.ReadFile(filepath.Join(dir, EventsFile))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Reopen(dir); !errors.Is(err, engine.ErrRefused) {
				t.Errorf("%v", err)
			}
			after, err := os.ReadFile(filepath.Join(dir, EventsFile))
			if err != nil || !bytes.Equal(before, after) {
				t.Errorf("it was changed: %v", err)
			}
			release, err := Hold(dir)
			if err != nil {
				t.Fatalf("it is still held: %v", err)
			}
			if err := release(); err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := Reopen(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a directory that is not there")
	}
}

// A chain of things that another directory's ledger owns has no ledger.
func TestCreateChain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "slot")
	d, err := CreateChain(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(d.Events.Append(bench.Receipt{Event: "run_start"}), d.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(dir, LedgerFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("ledger: %v", err)
	}
	if d, err = Reopen(dir); err != nil {
		t.Fatal(err)
	}
	if d.Ledger != nil {
		t.Error("a ledger came from nowhere")
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// A handle that the schema does not know is neither written nor read.
func TestHandleIsOfTheSchema(t *testing.T) {
	d, err := Create(filepath.Join(t.TempDir(), "slot"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	digest := bench.SHA256(noLine)
	h := bench.SlotHandle{
		ApiVersion: engine.APIVersion, Name: "desk", Arm: "drums", Created: "2026-01-01T00:00:00Z", Changed: "2026-01-01T00:00:00Z", State: "gone", Boot: "boot",
		Engine: bench.EngineVersion{Version: "1", Sha256: digest, Go: "go1", Schema: engine.APIVersion}, Server: digest, Image: digest, Manifest: digest,
		Workload: digest, Plan: digest, Settings: map[string]string{"locks": "repair"}, Claim: "0123456789ab", Work: "/work", Owned: []bench.OwnedThing{},
	}
	written, err := d.WriteHandle(h)
	if err != nil {
		t.Fatal(err)
	}
	got, read, err := ReadHandle(d.Path)
	if err != nil || read != written || got.Name != "desk" {
		t.Errorf("%+v %s %v, wrote %s", got, read, err, written)
	}
	for name, change := range map[string]func(*bench.SlotHandle){
		"state": func(h *bench.SlotHandle) { h.State = "alive" },
		"claim": func(h *bench.SlotHandle) { h.Claim = "../../etc" },
		"name":  func(h *bench.SlotHandle) { h.Name = "a/b" },
	} {
		bad := h
		change(&bad)
		if _, err := d.WriteHandle(bad); err == nil {
			t.Errorf("%s: written", name)
		}
	}
	if err := os.WriteFile(filepath.Join(d.Path, HandleFile), []byte(`{"state":"running"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ReadHandle(d.Path); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("read: %v", err)
	}
}
