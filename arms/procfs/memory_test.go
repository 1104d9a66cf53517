package procfs_test

import (
	"slices"
	"strconv"
	"testing"

	prom "github.com/prometheus/procfs"

	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/arms/procfs/slottest"
)

// zombie leaves a dead child with an agent.
func zombie(t *testing.T, s *slottest.Slot, a *slottest.Agent) {
	inner, _ := strconv.Atoi(a.Call("zombie"))
	waitFor(t, func() bool {
		tasks, err := procfs.Tasks(s.Init)
		return err == nil && slices.ContainsFunc(tasks, func(task procfs.Task) bool { return task.Inner == inner && task.Zombie() })
	})
}

// A slot's private memory grows by what one of its processes writes, as another reader of procfs sees it too.
func TestSlotMemory(t *testing.T) {
	s := slottest.Start(t)
	a := s.Spawn("a")
	zombie(t, s, a)
	s.Stop()
	before, known := procfs.SlotMemory(s.Init).Get()
	if !known || before.Processes != 2 || before.PrivateDirty <= 0 || before.Pss <= 0 || before.Harness != 0 {
		t.Fatalf("before: %+v, known %t, want two processes: a zombie has no memory", before, known)
	}
	var dirty, pss int64
	for _, pid := range s.Pids() {
		p, err := prom.NewProc(pid)
		if err != nil {
			t.Fatal(err)
		}
		if r, err := p.ProcSMapsRollup(); err == nil { // the zombie's is an error
			dirty, pss = dirty+int64(r.PrivateDirty), pss+int64(r.Pss)
		}
	}
	// Nothing of a stopped slot changes but what it shares: the program's pages are those of all agents.
	if before.PrivateDirty != dirty || before.Pss < pss/2 || before.Pss > pss*2 {
		t.Errorf("have %+v; another reader says dirty %d, pss %d", before, dirty, pss)
	}
	s.Continue()
	const much = 32 << 20
	a.Call("dirty", "33554432")
	after, known := procfs.SlotMemory(s.Init).Get()
	if grown := after.PrivateDirty - before.PrivateDirty; !known || grown < much || grown > much+much/4 {
		t.Errorf("after 32 MiB were written: %+v, known %t", after, known)
	}
}

func TestSlotMemoryUnknown(t *testing.T) {
	s := slottest.Start(t)
	if _, known := procfs.SlotMemory(s.Pids()[0]).Get(); !known {
		t.Fatal("a living slot is unknown")
	}
	s.Kill()
	if r := procfs.SlotMemory(s.Init); r.Reason() == "" {
		t.Error("a slot that has ended has memory")
	}
}

func TestReadMemoryNeedsEveryProcess(t *testing.T) {
	s := slottest.Start(t)
	a := s.Spawn("a")
	pids := s.Pids()
	if m, known := procfs.ReadMemory(pids).Get(); !known || m.Processes != len(pids) {
		t.Fatalf("%+v", m)
	}
	if r := procfs.ReadMemory(nil); r.Reason() == "" {
		t.Error("the memory of no process is known")
	}
	zombie(t, s, a)
	all := s.Pids()
	if len(all) != len(pids)+1 {
		t.Fatalf("no zombie: %v", all)
	}
	if r := procfs.ReadMemory(all); r.Reason() == "" {
		t.Error("a dead process was left out")
	}
}
