package qemu

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/stats"
)

// BenchmarkReset times a reset through the arm (verify, kill, cgroups, ledger,
// disk, QEMU, load, clock, thaw) against a bare QMP script that does the same
// without them, in turn, and reports the medians and their ratio; gated adds the
// census that a run's gates ask for while the slot is stopped. scripts/bench-qemu
// prepares and calls it.
func BenchmarkReset(b *testing.B) {
	const rounds, each = 4, 8
	s := makeSlotOf(b, MethodFile, light(b))
	s.ready(b, s.slot)
	cp, place := s.dump(b)
	var next engine.Place = place
	reset := func(gated bool) float64 {
		begin := time.Now()
		stopped, err := s.stopped(b, cp, next, "slot-0")
		if err != nil {
			b.Fatal(describe(err))
		}
		if gated {
			stopped.Observe(context.Background(), engine.AspectLocks, engine.AspectMounts, engine.AspectLimits, engine.AspectProcesses, engine.AspectState)
		}
		slot, err := stopped.Resume(context.Background())
		if err != nil {
			b.Fatal(describe(err))
		}
		next = slot
		return time.Since(begin).Seconds() * 1e3
	}
	for b.Loop() {
		var ours, gated, bare []float64
		for range rounds {
			reset(false) // has nothing, or another's, to kill
			for range each {
				ours = append(ours, reset(false))
			}
			for range each {
				gated = append(gated, reset(true))
			}
			if err := next.Vacate(context.Background()); err != nil {
				b.Fatal(err)
			}
			bare = append(bare, bareResets(b, s, cp, each)...)
		}
		a, g, c := median(ours), median(gated), median(bare)
		b.ReportMetric(a, "engine-ms/reset")
		b.ReportMetric(g, "gated-ms/reset")
		b.ReportMetric(c, "bare-ms/reset")
		b.ReportMetric(a/c, "ratio")
		b.ReportMetric(0, "ns/op")
		interval := "too few for an interval"
		if e := stats.Ratio(bare, ours); e.Interval != nil {
			interval = fmt.Sprintf("%.2f to %.2f at %.0f%%", e.Interval.Low, e.Interval.High, e.Interval.Confidence*100)
		}
		b.Logf("engine %.1f ms, with the census %.1f ms, bare %.1f ms, ratio of medians %.2f (%s), n=%d and %d", a, g, c, a/c, interval, len(ours), len(bare))
	}
}

func bareResets(b *testing.B, s made, cp engine.Checkpoint, n int) (ms []float64) {
	b.Helper()
	shape, err := shapeIn(cp.Handle)
	if err != nil {
		b.Fatal(err)
	}
	r := s.root.(*root)
	l := launch{initrd: r.boot.initramfs, layers: []string{in(cp, diskFile)}, memory: r.file, incoming: r.file} // that there are such files
	text, err := json.Marshal(map[string]any{
		"command": append([]string{s.arm.tool.Path}, s.arm.arguments(r, shape, l)...), "resets": n, "dir": b.TempDir(),
		"image": r.path, "fresh": in(cp, freshFile), "memory": in(cp, memoryFile), "machine": in(cp, machineFile),
		"tap": tapName, "mac": tapMAC, "card": cardMAC, "host": hostAddress, "guest": guestAddress, "port": shape.Port,
	})
	if err != nil {
		b.Fatal(err)
	}
	var said bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "testdata/bare-reset")
	cmd.WaitDelay = time.Second
	cmd.Stdin, cmd.Stderr = bytes.NewReader(text), &said
	out, err := cmd.Output()
	if err != nil {
		b.Fatalf("%v\n%s", err, said.String())
	}
	for _, line := range strings.Fields(string(out)) {
		ns, err := strconv.ParseInt(line, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		ms = append(ms, float64(ns)/1e6)
	}
	return ms
}

func median(list []float64) float64 {
	slices.Sort(list)
	if len(list) == 0 {
		return 0
	}
	return (list[(len(list)-1)/2] + list[len(list)/2]) / 2
}
