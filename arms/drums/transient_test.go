package drums

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/drumsbench/drumsbench/arms/tree"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// inFlight is a service with a connection that nobody has accepted, with data in
// it, until the file /run/go is there; criu cannot dump that.
const inFlight = `
import os, socket, time
l = socket.socket(socket.AF_UNIX); l.bind("/run/inflight"); l.listen(4)
c = socket.socket(socket.AF_UNIX); c.connect("/run/inflight"); c.send(b"x")
open("/run/inflight.ready", "w").close()
while not os.path.exists("/run/go"): time.sleep(0.005)
s, _ = l.accept()
while True: time.sleep(1)
`

// hasty is the drums arm; after fails dumps of its first slot have failed, the
// slot's service is told to accept.
type hasty struct {
	*Arm
	fails int
	// handle of the checkpoint that was made.
	handle bench.Checkpoint
}

type hastySlot struct {
	*slot
	by *hasty
}

func (s *hastySlot) Dump(ctx context.Context, p bench.DumpParams, ref engine.GuestReference) (engine.Checkpoint, engine.Place, error) {
	cp, place, err := s.slot.Dump(ctx, p, ref)
	s.by.handle = cp.Handle
	return cp, place, err
}

func (h *hasty) Provision(ctx context.Context, ws *engine.Workspace, r engine.Root, p engine.Place, params bench.ProvisionParams) (engine.Slot, error) {
	got, err := h.Arm.Provision(ctx, ws, r, p, params)
	if err != nil {
		return nil, err
	}
	pid := strconv.Itoa(got.(*slot).now.Pid)
	ws.Evidence = &logWatch{EvidenceStore: ws.Evidence, left: h.fails, then: func() error {
		return os.WriteFile("/proc/"+pid+"/root/run/go", nil, 0o644)
	}}
	return &hastySlot{got.(*slot), h}, nil
}

// logWatch does something once a number of dump logs was kept.
type logWatch struct {
	engine.EvidenceStore
	mu   sync.Mutex
	left int
	then func() error
}

func (w *logWatch) Put(name string, data []byte) (bench.Evidence, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if name == "criu-dump.log" {
		if w.left--; w.left == 0 {
			if err := w.then(); err != nil {
				return bench.Evidence{}, err
			}
		}
	}
	return w.EvidenceStore.Put(name, data)
}

// A dump that meets a connection on its way is tried again, and the record says
// so; one that never ends is told as it is, and the slot lives on to be released.
func TestDumpInFlight(t *testing.T) {
	for _, c := range []struct {
		fails int // dumps that fail before the service accepts
		want  bench.Verdict
	}{{2, engine.Pass}, {tree.DumpAttempts + 1, engine.Fail}} {
		m := manifest(t, "rollouts=1")
		m.Guest.Services = append(m.Guest.Services, bench.Service{Name: "inflight", Exec: []string{"/usr/bin/python3", "-c", inFlight}, Ready: "/run/inflight.ready"})
		arm := &hasty{Arm: newArm(t, m), fails: c.fails}
		_, by, r := execute(t, arm, m, "restore")
		dump := by["base/dump"]
		if dump.Verdict != c.want {
			t.Fatalf("%d failures: %s %+v", c.fails, dump.Verdict, dump.Error)
		}
		if c.want == engine.Fail {
			if !strings.Contains(dump.Error.Text, "in-flight") || dump.Error.Hint == "" || dump.Error.Log == "" {
				t.Errorf("%+v", dump.Error)
			}
			continue
		}
		if r.Verdict != engine.RunPassed {
			t.Errorf("%s: %s", r.Verdict, r.Reason)
		}
		said := false
		for _, f := range arm.handle.Facts {
			if f.Name == "dump-attempts" {
				said = f.Known && f.Value == strconv.Itoa(c.fails+1) && strings.Contains(f.Source, "in-flight")
			}
		}
		if !said {
			t.Errorf("the checkpoint does not say that it took %d attempts, and why: %+v", c.fails+1, arm.handle.Facts)
		}
	}
}
