package report

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record/recordtest"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func knownFact(name, value string) bench.Fact {
	return bench.Fact{Name: name, Known: true, Value: value, Source: "a test"}
}

// probed are the facts of a host that was busy before the run and quiet after it.
func probed() []bench.Fact {
	probe := func(noise string) string {
		return `{"memcpy":"5200000000","pageFault":"15000","forkExec":"2400000","fsync":"310000","thp":"madvise","ksm":"0","busy":"0.62","steal":"0.0","swapping":"0","swapUsed":"0",` +
			`"total":"25276502016","available":"20000000000","load":"4.10 3.77 3.04","pressure":{"cpu":"12.31","io":"0.00","memory":"0.00"},"noise":[` + noise + `],"elapsed":"420000000"}`
	}
	return []bench.Fact{knownFact("survey/host-probe", probe(`"share of the processors' time that others used is 0.6200, at most 0.15 is quiet"`)), knownFact("gate-cleanup/host-probe", probe(""))}
}

const footprint = `{"programs":[{"path":"/opt/drumsbench/bin/drumsbench","bytes":"52572650"},{"path":"/opt/drumsbench/criu/bin/criu","bytes":"23068672","copied":["criu=4.2.1-1","libc6=2.43-7"]},` +
	`{"path":"/usr/sbin/losetup","bytes":"72000","package":"mount"}],"packages":["libc6=2.36-9","mount=2.38.1-5"],"installed":"110757888",` +
	`"privileges":[{"name":"CAP_SYS_ADMIN","why":"no namespace is made","held":true},{"name":"CAP_SYS_RESOURCE","why":"processes of other users are not dumped","held":false}],"unknown":{"licences":"nobody asked"}}`

const channels = `"abstract-socket","file","port","shm","sysv-shm"`

// manyAtOnce are the runs of an experiment with a sweep of 1, 2 and 4 slots in four
// trials, a level of 8 that failed, two sustained windows with prices, and a task that branches.
func manyAtOnce(t *testing.T) (runs []*Run) {
	good := load(t, recordtest.Run{Arm: "drums", Rollouts: 4, Controls: true})
	part := func(of *Run, kind string, slots, series int, facts ...bench.Fact) *Run {
		r := *of // its page has another record; reading a directory for each takes long
		r.Record.Run = fmt.Sprintf("density/drums-restore-%s%d-%d", kind, slots, series)
		r.Record.Digests = maps.Clone(r.Record.Digests)
		r.Record.Digests["events"] = bench.SHA256(fmt.Sprintf("%064x", len(runs)+1))
		r.Record.Facts = slices.Concat(r.Record.Facts, facts, probed(), []bench.Fact{knownFact("experiment.part", kind), knownFact("experiment.slots", fmt.Sprint(slots)), knownFact("experiment.block", fmt.Sprint(series)),
			knownFact("experiment.run", "0"), knownFact("footprint", footprint), knownFact("mount/"+engine.FactImageStorage, "98566144"), knownFact("base/dump/"+engine.FactCheckpointStorage, "31457280")})
		r.Record.Rollouts = slices.Clone(r.Record.Rollouts)
		for i := range r.Record.Rollouts {
			r.Record.Rollouts[i].Stored = bench.Int64(fmt.Sprint((i + 1) * 400000))
		}
		return &r
	}
	for trial := range 4 {
		for _, n := range []int{1, 2, 4} {
			var slots []string
			for k := range n {
				slots = append(slots, fmt.Sprintf(`{"slot":"slot-%d","memory":{"privateDirty":"%d","pss":"%d","processes":3,"harness":"190000"},"cpu":"%d"}`, k, 9_000_000+k*50_000, 14_000_000, 310_000_000+k*2_000_000))
			}
			facts := []bench.Fact{knownFact("baseline-before/host-memory", `{"used":"1000000000","low":"999000000","high":"1001000000","readings":5}`),
				knownFact("baseline-after/host-memory", `{"used":"1000400000","low":"999000000","high":"1001000000","readings":5}`),
				knownFact("density/level", fmt.Sprintf(`{"host":{"used":"%d","low":"0","high":"0","readings":5},"slots":[%s],"engine":"41000000"}`, 1_000_000_000+20_000_000+n*(17_000_000+trial*900_000), strings.Join(slots, ",")))}
			if n > 1 {
				facts = append(facts, knownFact("isolate/isolation", fmt.Sprintf(`{"fired":[%s],"missed":[],"watched":[%s],"blind":{"clipboard":"the guest has no display"},"exposure":"%d","looks":3,"events":[]}`, channels, channels, n*3_000_000_000)))
			}
			runs = append(runs, part(good, "level", n, trial, facts...))
		}
	}
	runs = append(runs, part(load(t, recordtest.Run{Arm: "drums", Rollouts: 2, Gate: "locks", Verdict: engine.Fail, Findings: []bench.Finding{{Verdict: engine.Fail, Subject: "/var/lib/locks/wal.db-shm", Text: "a lock is gone"}}}), "level", 8, 0))
	for i, at := range []string{"05:00:00 05:10:30", "05:11:00 05:12:40"} { // the second is short
		r := part(good, "sustain", 2, i)
		from, to, _ := strings.Cut(at, " ")
		r.Record.Started, r.Record.Ended = bench.Time("2026-11-30T"+from+"Z"), bench.Time("2026-11-30T"+to+"Z")
		r.Manifest.Experiment.Prices = &bench.Prices{Owned: bench.OwnedPrice{Date: "2026-11-30", Source: "a workstation written off over three years", Purchase: "2400", Hours: 26280, Watts: "120", Kwh: "0.40"},
			OnDemand:  bench.CloudPrice{Date: "2026-11-30", Source: "four processors on demand", Hourly: "0.192", Minimum: "0"},
			Second:    bench.SecondPrice{Date: "2026-11-30", Source: "a dedicated host by the hour", Currency: "EUR", Hourly: "0.0825", Minimum: "0", Usd: "1.16", RateDate: "2026-11-30", RateSource: "reference rate"},
			Inference: bench.InferencePrice{Counted: "out"}}
		runs = append(runs, r)
	}
	runs = append(runs, branched(t))
	return runs
}

// branched is a run of two rounds of a task with three branches, and its checks.
func branched(t *testing.T) *Run {
	r := load(t, recordtest.Run{Name: "branches/drums-restore", Arm: "drums", Manifest: "branch", Rollouts: 6, Facts: probed()})
	zero := 0.0
	for i := range r.Record.Rollouts {
		o := &r.Record.Rollouts[i]
		o.Branch, o.Slot = []bench.Name{"right", "wrong", "idle"}[i%3], fmt.Sprintf("slot-%d", i%3)
		if o.Branch != "right" {
			o.After, o.Class = &zero, "failed_valid"
		}
	}
	r.Manifest.Task.Branching = &bench.Branching{Branches: []bench.Branch{{Name: "right", Act: []bench.Command{{Exec: []string{"ledger", "add", "power"}}}, Score: 1},
		{Name: "wrong", Act: []bench.Command{{Exec: []string{"ledger", "add", "wine"}}}}, {Name: "idle"}}}
	for round := range 2 {
		for _, id := range []string{"gate-hygiene", "gate-audit", "isolate", "gate-diverged", "gate-parent"} {
			r.Record.Steps = append(r.Record.Steps, bench.StepOutcome{Step: fmt.Sprintf("s%d/%s", round, id), Kind: "gate", Verdict: engine.Pass})
		}
		for k := range 3 {
			r.Record.Steps = append(r.Record.Steps, bench.StepOutcome{Step: fmt.Sprintf("r%d/gate-carried", 3*round+k), Kind: "gate", Verdict: engine.Pass})
		}
	}
	return r
}

// sections: the parts of the pages that only some runs have are seen, checked and
// counted like the others: what many slots take, cost, isolation, footprints, storage, the host, branches.
func (b *browser) sections(t *testing.T, dir, shots string) (pages []string) {
	t.Helper()
	runs := manyAtOnce(t)
	if err := Write(dir, Input{Runs: runs, Program: "test"}); err != nil {
		t.Fatal(err)
	}
	checkLinks(t, read(t, dir))
	pages = []string{filepath.Join(dir, "index.html")}
	for _, name := range []string{"level4-3", "level8-0", "branches-"} {
		found, err := filepath.Glob(filepath.Join(dir, "runs", "*"+name+"*", "index.html"))
		if err != nil || len(found) != 1 {
			t.Fatal(found, err)
		}
		pages = append(pages, found[0])
	}
	b.look(t, dir, "sections-", shots, pages)

	text := func(selector string) string {
		return value[string](t, b, fmt.Sprintf(`Array.from(document.querySelectorAll(%q)).map(e => e.textContent.replace(/\s+/g, " ")).join("\n")`, selector))
	}
	says := func(where, selector string, want ...string) {
		t.Helper()
		have := text(selector)
		for _, w := range want {
			if !strings.Contains(have, w) {
				t.Errorf("%s does not say %q in %s: %s", where, w, selector, have)
			}
		}
	}
	b.do(t, navigate(pages[0]))
	says("the index", "#table-density-0 tbody tr", "host memory of one more slot17.5", "largest number of slots that passed every gate in two windows4slots4windows8 slots: run density/drums-restore-level8-0 failed", "SHORT", "estimate", "inference out",
		"fired in each of 8 runs", "disk of a checkpoint with its layers30.00", "private dirty memory of a slot, 4 at once8.65")
	says("the index", "#table-density-failures tbody tr", "a lock is gone")
	says("the index", "#table-footprints tbody tr", "drums372.21", "94.0030.00", "CAP_SYS_ADMIN")
	says("the index", "#table-asked tbody tr", "Stable N", "in 1 arm and reset", "Learning curve", "not measured")
	says("the index", "#table-sameness tbody tr", "workload digest")
	// The newest record is of the time of the test, which may pass midnight.
	if now := time.Now().UTC(); !strings.Contains(text("main > p"), "As of "+now.Format(time.DateOnly)+":") {
		says("the index", "main > p", "As of "+now.Add(-time.Hour).Format(time.DateOnly)+":")
	}
	says("the index", "main > p", ": 16 records of 1 arm, 0 comparisons. No two sides have been compared")
	// A circle for each reading, and three lines: the slope and the ends of its interval.
	for selector, want := range map[string]int{"svg.plot [class^=f-s]": 12, "svg.plot path[class^=s-s]": 3, "ul.key li": 3} {
		if n := value[int](t, b, fmt.Sprintf(`document.querySelectorAll(%q).length`, selector)); n != want {
			t.Errorf("%d marks of %s, want %d", n, selector, want)
		}
	}
	b.do(t, navigate(pages[1]))
	says("a level", "#table-needs tbody tr", "private copy of 2 packages", "CAP_SYS_RESOURCE, NOT held", "licences: nobody asked", "checkpoint: 30.00 MiB")
	says("a level", "#table-host-probe tbody tr", "beforeNO5.20", "afteryes5.20")
	says("a level", "ul.caveats li", "The host was not quiet before the run: share of the processors' time that others used is 0.6200")
	b.do(t, navigate(pages[3]))
	says("branches", "#table-branches tbody tr", "rightledger add powerslot-02success", "idlenobody actsslot-22failed_valid")
	says("branches", "#table-siblings tbody tr", "carried", "6 of 6", "2 of 2")
	return pages
}
