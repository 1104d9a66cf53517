//go:build linux && !elsewhere

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine/checkpoint"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/stats"
)

// BenchmarkReset times a reset through the engine (kill, layer, criu, lock
// repair, the census and gates on the stopped tree, resume) against a bare shell
// loop that does the same with the same tools and nothing else, in turn, for each
// arm, and the arms against each other. scripts/bench-reset prepares and calls it.
func BenchmarkReset(b *testing.B) {
	for b.Loop() {
		p := benchPeers(b, 4, 8, false)
		for _, arm := range []string{"drums", "oci"} {
			ours, bare := p.resets(arm), p.resets(arm+"-bare")
			b.ReportMetric(median(ours), arm+"-engine-ms/reset")
			b.ReportMetric(median(bare), arm+"-bare-ms/reset")
			b.ReportMetric(judgeRatio(b, arm, "engine", "bare", ours, bare, overBare), arm+"-ratio")
		}
		b.ReportMetric(judgeRatio(b, "arms", "drums", "oci", p.resets("drums"), p.resets("oci"), overRunc), "drums/oci")
		b.ReportMetric(0, "ns/op")
	}
}

// What a reset may cost: through the engine over the bare loop, and on drums over oci.
const overBare, overRunc = 1.05, 0.8

// judgeRatio prints the ratio of two medians with its interval, and fails where the
// ratio is above a bound and the interval does not reach down to it: the host was
// not so noisy that it could be said otherwise.
func judgeRatio(b *testing.B, what, nameA, nameB string, a, c []float64, atMost float64) float64 {
	r := stats.Ratio(c, a) // of a over c
	said := "with no interval"
	low := 0.0
	if r.Interval != nil {
		low = r.Interval.Low
		said = fmt.Sprintf("%.2f … %.2f at %.0f%%", low, r.Interval.High, 100*r.Interval.Confidence)
	}
	ratio := median(a) / median(c)
	b.Logf("%s: %s %.1f ms, %s %.1f ms, ratio of medians %.3f (%s), at most %.2f is asked, n=%d and %d",
		what, nameA, median(a), nameB, median(c), ratio, said, atMost, len(a), len(c))
	if ratio > atMost && low > atMost {
		b.Errorf("%s: the ratio is above %.2f", what, atMost)
	}
	return ratio
}

// resets are the times in ms from the start of a restore step to the end of its
// resume step; the first reset, which has nothing to kill, is left out as in the loop.
func resets(b *testing.B, run string) (ms []float64) {
	receipts, _, err := record.ReadEvents(run)
	if err != nil {
		b.Fatal(err)
	}
	start := map[string]int64{}
	for _, r := range receipts {
		rollout, step, _ := strings.Cut(r.Step, "/")
		if rollout == "r0" {
			continue
		}
		switch step {
		case "restore":
			start[rollout], _ = strconv.ParseInt(string(r.Start), 10, 64)
		case "resume":
			end, _ := strconv.ParseInt(string(r.End), 10, 64)
			ms = append(ms, float64(end-start[rollout])/1e6)
		}
	}
	return ms
}

func bareResets(b *testing.B, loop []string, state, run string, n int) (ms []float64) {
	cp, err := checkpoint.Open(filepath.Join(run, "checkpoints", "slot-0"))
	if err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	copyUp := filepath.Join(dir, "copyup")
	if err := os.WriteFile(copyUp, []byte(strings.Join(cp.Handle.CopyUp, "\n")+"\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	err = withImage(b, state, dir, readManifest(b, run), func(root string) error {
		var stderr bytes.Buffer
		cmd := exec.Command(loop[0], append(loop[1:len(loop):len(loop)], cp.Dir, root, filepath.Join(dir, "slot"), copyUp, strconv.Itoa(n))...)
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("%w\n%s", err, stderr.String())
		}
		ms = nanoseconds(b, out)
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	return ms
}

func median(list []float64) float64 {
	sort.Float64s(list)
	if len(list) == 0 {
		return 0
	}
	return (list[(len(list)-1)/2] + list[len(list)/2]) / 2
}
