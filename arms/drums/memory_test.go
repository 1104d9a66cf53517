package drums

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
)

// The slot's memory is known for as long as there is a slot. Beside it runs a
// storage daemon where the image is shown by one, and nothing else.
func TestMemory(t *testing.T) {
	for _, attach := range []string{"raw", "fuse"} {
		t.Run(attach, func(t *testing.T) {
			of := manifest(t)
			of.Arms.Drums.Attach = attach
			s := harness.Make(t, of)
			defer s.Release(t, s.Slot, s.Arm)
			s.Ready(t, s.Slot)
			r := s.Slot.Observe(t.Context(), engine.AspectMemory).Memory
			m, known := r.Get()
			if !known || r.View() != engine.ViewHost || m.Processes < 2 || m.PrivateDirty < 1<<20 || m.Pss < m.PrivateDirty {
				t.Errorf("%+v, known %t (%s)", m, known, r.Reason())
			}
			if (m.Harness > 0) != (attach == "fuse") {
				t.Errorf("%d bytes beside the slot", m.Harness)
			}
			if other := s.Slot.Observe(t.Context(), engine.AspectLimits).Memory; other.Reason() == "" {
				t.Error("memory was read unasked")
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if attach == "fuse" {
				// A daemon that is not found is not one that takes no memory.
				tools := s.Arm.(*Arm).groups.Tools
				s.Arm.(*Arm).groups.Tools = s.Slot.(*slot).group
				if r := s.Slot.Observe(ctx, engine.AspectMemory).Memory; !strings.Contains(r.Reason(), "storage daemon") {
					t.Errorf("without a daemon: %q", r.Reason())
				}
				s.Arm.(*Arm).groups.Tools = tools
			}
			if err := s.Slot.(*slot).group.Kill(ctx); err != nil {
				t.Fatal(err)
			}
			if r := s.Slot.Observe(ctx, engine.AspectMemory).Memory; r.Reason() == "" {
				t.Error("a dead slot has memory")
			}
		})
	}
}
