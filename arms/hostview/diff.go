package hostview

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Diff compares two snapshots by after's scope. A change that is ours is a
// fail; a foreign one is listed with the verdict pass, foreign processes in one
// finding, since they come and go all the time. No finding at all is a host that
// did not change.
func Diff(before, after Snapshot) []bench.Finding {
	d := differ{scope: after.Scope}
	d.mounts(before.Mounts, after.Mounts)
	d.processes(before, after)
	d.sets("control group", before.Cgroups, after.Cgroups, d.scope.holdsCgroup)
	d.maps("loop device", before.Loops, after.Loops, d.scope.holdsPath)
	d.namespaces(before, after)
	d.maps("link", before.Links, after.Links, func(string) bool { return false })
	return d.findings
}

type differ struct {
	scope    Scope
	findings []bench.Finding
}

func (s Scope) holdsCgroup(path string) bool {
	for _, part := range strings.Split(path, "/") {
		rest, ok := strings.CutPrefix(part, "drums-"+s.ID)
		if ok && (s.ID == "" || rest == "" || rest[0] == '-') {
			return true
		}
	}
	return false
}

func (s Scope) holdsPath(path string) bool {
	return slices.ContainsFunc(s.Paths, func(top string) bool {
		top = filepath.Clean(top)
		return path == top || strings.HasPrefix(path, top+"/")
	})
}

func (d *differ) add(ours bool, subject, text, want, have string) {
	f := bench.Finding{Verdict: engine.Fail, Subject: subject, Text: text, Want: want, Have: have}
	if !ours && !d.scope.Exclusive {
		f.Verdict, f.Text = engine.Pass, text+" (foreign)"
	}
	d.findings = append(d.findings, f)
}

func (d *differ) mounts(before, after map[Mount]int) {
	all := maps.Clone(before)
	if all == nil {
		all = map[Mount]int{}
	}
	maps.Copy(all, after)
	for _, m := range slices.SortedFunc(maps.Keys(all), compareMounts) {
		ours := d.scope.holdsPath(m.Point) || d.scope.holdsPath(m.Source) || d.scope.holdsCgroup(m.Source)
		text := fmt.Sprintf("%s %s of %s, %s %s", m.Type, m.Source, m.Root, m.Options, m.Propagation)
		switch n := after[m] - before[m]; {
		case n > 0:
			d.add(ours, "mount "+m.Point, "is there and was not", "", text)
		case n < 0:
			d.add(ours, "mount "+m.Point, "was there and is not", text, "")
		}
	}
}

func compareMounts(a, b Mount) int {
	return cmp.Or(cmp.Compare(a.Point, b.Point), cmp.Compare(a.Source, b.Source), cmp.Compare(a.Root, b.Root),
		cmp.Compare(a.Type, b.Type), cmp.Compare(a.Options, b.Options), cmp.Compare(a.Propagation, b.Propagation))
}

func (d *differ) processes(before, after Snapshot) {
	var foreign []string
	gone := 0
	for _, id := range sortedIDs(after.Processes) {
		p := after.Processes[id]
		old, existed := before.Processes[id]
		switch {
		case !existed && p.Ours:
			d.findings = append(d.findings, bench.Finding{
				Verdict: engine.Fail, Subject: fmt.Sprintf("process %d", id.Pid), Text: "is there and was not",
				Have: fmt.Sprintf("%s, state %s, child of %d, in %s", p.Name, p.State, p.Parent, p.Cgroup),
			})
		case !existed:
			foreign = append(foreign, fmt.Sprintf("%s %d", p.Name, id.Pid))
		case p.Ours && old.State != "Z" && p.State == "Z":
			d.findings = append(d.findings, bench.Finding{
				Verdict: engine.Fail, Subject: fmt.Sprintf("process %d", id.Pid), Text: "ended and was not waited for",
				Want: old.Name + ", state " + old.State, Have: p.Name + ", state Z",
			})
		}
	}
	for _, id := range sortedIDs(before.Processes) {
		p := before.Processes[id]
		if _, exists := after.Processes[id]; exists {
			continue
		}
		if !p.Ours {
			gone++
			continue
		}
		d.findings = append(d.findings, bench.Finding{
			Verdict: engine.Fail, Subject: fmt.Sprintf("process %d", id.Pid), Text: "was there and is not", Want: p.Name,
		})
	}
	if len(foreign) == 0 && gone == 0 {
		return
	}
	have := strings.Join(foreign[:min(len(foreign), 8)], ", ")
	d.findings = append(d.findings, bench.Finding{
		Verdict: engine.Pass, Subject: "processes", Have: have,
		Text: fmt.Sprintf("%d foreign ones came and %d went", len(foreign), gone),
	})
}

func sortedIDs(m map[ProcessID]Process) []ProcessID {
	return slices.SortedFunc(maps.Keys(m), func(a, b ProcessID) int {
		return cmp.Or(cmp.Compare(a.Pid, b.Pid), cmp.Compare(a.Start, b.Start))
	})
}

// namespaces: a network namespace is ours if a process of ours lives in it. One
// that is kept by a mount alone shows among the mounts.
func (d *differ) namespaces(before, after Snapshot) {
	report := func(s, other Snapshot, text string) {
		for _, ns := range slices.Sorted(maps.Keys(s.NetNamespaces)) {
			if _, both := other.NetNamespaces[ns]; both {
				continue
			}
			for _, id := range s.NetNamespaces[ns] {
				if p := s.Processes[id]; p.Ours {
					d.findings = append(d.findings, bench.Finding{
						Verdict: engine.Fail, Subject: fmt.Sprintf("network namespace %d", ns), Text: text,
						Have: fmt.Sprintf("held by %s %d", p.Name, id.Pid),
					})
					break
				}
			}
		}
	}
	report(after, before, "is there and was not")
	report(before, after, "was there and is not")
}

func (d *differ) sets(kind string, before, after map[string]bool, ours func(string) bool) {
	for _, k := range slices.Sorted(maps.Keys(after)) {
		if !before[k] {
			d.add(ours(k), kind+" "+k, "is there and was not", "", "")
		}
	}
	for _, k := range slices.Sorted(maps.Keys(before)) {
		if !after[k] {
			d.add(ours(k), kind+" "+k, "was there and is not", "", "")
		}
	}
}

func (d *differ) maps(kind string, before, after map[string]string, ours func(string) bool) {
	for _, k := range slices.Sorted(maps.Keys(after)) {
		if old, ok := before[k]; !ok {
			d.add(ours(after[k]), kind+" "+k, "is there and was not", "", after[k])
		} else if old != after[k] {
			d.add(ours(after[k]) || ours(old), kind+" "+k, "is another one", old, after[k])
		}
	}
	for _, k := range slices.Sorted(maps.Keys(before)) {
		if _, ok := after[k]; !ok {
			d.add(ours(before[k]), kind+" "+k, "was there and is not", before[k], "")
		}
	}
}
