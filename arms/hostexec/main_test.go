package hostexec

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/arms/fake"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
	"github.com/drumsbench/drumsbench/steps"
)

// workspace is a run's in a folder of the test's. When the test ends, nothing may be owned any more.
func workspace(t *testing.T) (*engine.Workspace, *record.Dir) {
	t.Helper()
	base := t.TempDir()
	dir, err := record.Create(filepath.Join(base, "run"))
	if err != nil {
		t.Fatal(err)
	}
	var id [6]byte
	rand.Read(id[:])
	ws := &engine.Workspace{
		Run: dir.Path, Work: filepath.Join(base, "work"), State: base, ID: hex.EncodeToString(id[:]), Manifest: filepath.Join(base, "manifest"),
		Ledger: dir.Ledger, Evidence: dir.Evidence, Log: slog.New(slog.DiscardHandler),
	}
	if err := errors.Join(os.Mkdir(ws.Manifest, 0o755), ws.MakeWork()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ws.Release(context.Background()); err != nil {
			t.Error(err)
		}
		for _, o := range dir.Ledger.Open() {
			t.Errorf("the ledger says that %s %+v is not gone", o.Kind, o.Claim)
		}
		if err := dir.Close(); err != nil {
			t.Error(err)
		}
	})
	return ws, dir
}

// script lays a shell script beside the manifest and returns it as a program.
func script(t *testing.T, ws *engine.Workspace, text string) engine.HostProgram {
	t.Helper()
	text = "#!/bin/sh\n" + text
	if err := os.WriteFile(filepath.Join(ws.Manifest, "agent"), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(text))
	return engine.HostProgram{Name: "slot-0", Exec: []string{"./agent"}, Dir: ws.Manifest, SHA256: bench.SHA256(hex.EncodeToString(sum[:]))}
}

// run loads and runs a program, and takes it away.
func run(t *testing.T, ctx context.Context, ws *engine.Workspace, p engine.HostProgram, env ...string) (engine.HostResult, error) {
	t.Helper()
	l, err := New(ws, nil).Load(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	r, err := l.Run(ctx, env)
	if rerr := l.Release(context.Background()); rerr != nil {
		t.Error(rerr)
	}
	return r, err
}

// plan of the rename task on the fake arm, with a program that acts.
func plan(t *testing.T, p engine.HostProgram, timeout, reset string) (*engine.Plan, bench.Manifest) {
	t.Helper()
	sum := sha256.Sum256([]byte(imageText))
	m := bench.Manifest{
		ApiVersion: engine.APIVersion, Name: "rename",
		Image: bench.Image{File: "fake.qcow2", Sha256: bench.SHA256(hex.EncodeToString(sum[:]))}, Network: "none",
		Guest: bench.Guest{User: "root", Home: "/root", Services: []bench.Service{},
			Server: bench.Server{Port: 5000, Sha256: fake.ServerSHA256(), Exec: []string{"/usr/local/bin/guestd", "init"}}},
		Resources: bench.Resources{Vcpus: 1, Memory: "256MiB", Swap: "0", Pids: 64},
		Task: bench.Task{Id: "rename", Instruction: "Rename the folder todo to \"done\".\nNothing else.", Oracle: []bench.Command{{Exec: []string{"mv", "/root/Desktop/todo", "/root/Desktop/done"}, Timeout: "5s"}},
			Setup: []bench.Command{{Exec: []string{"mkdir", "-p", "/root/Desktop/todo"}, Timeout: "5s"}}},
		Policy:     &bench.Policy{Host: &bench.HostPolicy{Exec: p.Exec, Sha256: p.SHA256, Timeout: timeout}},
		Checker:    bench.Checker{Exec: []string{"test", "-d", "/root/Desktop/done"}, Timeout: "5s"},
		Canary:     bench.Canary{File: "/root/.canary"},
		Readiness:  bench.Readiness{Server: true, Windows: []bench.Window{}, Probes: []bench.Command{}, Period: "10ms", Deadline: "10s"},
		Arms:       bench.Arms{Fake: &bench.FakeSettings{Faults: []string{}}},
		Experiment: bench.Experiment{Reset: []string{reset}, Rollouts: 2, Blocks: 1, Order: "abba", Reuse: "post_setup", Slots: 1, Seed: 40},
	}
	m.Checker.Failure.Exit = 1
	workload, err := compile.Workload(m)
	if err != nil {
		t.Fatal(err)
	}
	b, err := steps.Block(m, workload, reset)
	if err != nil {
		t.Fatal(err)
	}
	return b, m
}

const imageText = "an image that nobody reads\n"

// progress sees each event before the next thing happens.
type progress func(engine.Event)

func (p progress) Event(e engine.Event) { p(e) }

// execute runs a plan on the fake arm and returns the outcomes and receipts of its steps.
func execute(t *testing.T, ws *engine.Workspace, p *engine.Plan, m bench.Manifest, sees progress) (engine.Result, map[string]bench.Receipt) {
	t.Helper()
	images := filepath.Join(ws.State, "images")
	if err := errors.Join(os.MkdirAll(images, 0o755), os.WriteFile(filepath.Join(images, "fake.qcow2"), []byte(imageText), 0o600)); err != nil {
		t.Fatal(err)
	}
	arm, err := fake.New(*m.Arms.Fake)
	if err != nil {
		t.Fatal(err)
	}
	ws.Host = New(ws, arm)
	receipts := receiptSink{}
	e := engine.Executor{Plan: p, Bindings: steps.Bindings(), Arm: arm, Workspace: ws, Sink: receipts}
	if sees != nil {
		e.Progress = sees
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	res, err := e.Run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return res, receipts
}

type receiptSink map[string]bench.Receipt

func (s receiptSink) Append(r bench.Receipt) error {
	s[r.Step] = r
	return nil
}

func fact(r bench.Receipt, name string) string {
	for _, f := range r.Facts {
		if f.Name == name && f.Known {
			return f.Value
		}
	}
	return "(unknown)"
}

// evidence of a step by name.
func evidence(t *testing.T, ws *engine.Workspace, r bench.Receipt, name string) string {
	t.Helper()
	for _, e := range r.Evidence {
		if e.Name == name {
			data, err := os.ReadFile(ws.Evidence.Path(e))
			if err != nil {
				t.Error(err)
			}
			return string(data)
		}
	}
	t.Errorf("step %s has no evidence %s", r.Step, name)
	return ""
}

func requireAbsent(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is there (%v)", path, err)
	}
}

// alive are the processes whose command line holds a text.
func alive(t *testing.T, text string) (pids []string) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if line, err := os.ReadFile(name); err == nil && strings.Contains(string(line), text) {
			pids = append(pids, filepath.Base(filepath.Dir(name)))
		}
	}
	return pids
}
