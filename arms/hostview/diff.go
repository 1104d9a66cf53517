package hostview

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// listed is how many foreign changes of one kind are listed one by one.
const listed = 16

// Diff compares two snapshots by after's scope. A change that is ours is a
// fail; a foreign one is listed with the verdict pass, foreign processes in one
// finding, since they come and go all the time. What could not be read in either
// is unknown. No finding at all is a host that did not change.
func Diff(before, after Snapshot) []bench.Finding {
	d := differ{scope: after.Scope, foreign: map[string]int{}}
	d.mounts(before.Mounts, after.Mounts)
	d.processes(before, after)
	d.cgroups(before.Cgroups, after.Cgroups)
	d.loops(before.Loops, after.Loops)
	d.namespaces(before, after)
	d.links(before.Links, after.Links)
	d.rules(before.Rules, after.Rules)
	d.sysctls(before, after)
	d.unread(before.Unread, after.Unread)
	for _, kind := range slices.Sorted(maps.Keys(d.foreign)) {
		if n := d.foreign[kind] - listed; n > 0 {
			d.findings = append(d.findings, bench.Finding{Verdict: engine.Pass, Subject: kind, Text: fmt.Sprintf("%d more foreign changes", n)})
		}
	}
	return d.findings
}

type differ struct {
	scope    Scope
	findings []bench.Finding
	foreign  map[string]int // by kind
}

const (
	appeared = "is there and was not"
	vanished = "was there and is not"
	differs  = "is another one"
)

// hints say what to do about a leftover of ours, by kind.
var hints = map[string]string{
	"mount":             "umount it; drumsbench sweep takes away what the run's ledger says that it owns",
	"process":           "end it; drumsbench sweep ends what is in the run's control group",
	"control group":     "rmdir it once it is empty; drumsbench sweep takes it away",
	"loop device":       "losetup --detach it once nothing uses it",
	"network namespace": "end who holds it",
	"link":              "ip link delete it",
	"firewall":          "take it away with nft or iptables",
	"sysctl":            "set it back with sysctl -w, and find out who set it: nobody is to change the host while a run measures",
}

// add notes a change. name is the thing within its kind.
func (d *differ) add(ours bool, kind, name, text, want, have string) {
	f := bench.Finding{Verdict: engine.Fail, Subject: kind + " " + name, Text: text, Want: want, Have: have, Hint: hints[kind]}
	if !ours && !d.scope.Exclusive {
		if d.foreign[kind]++; d.foreign[kind] > listed {
			return
		}
		f.Verdict, f.Text, f.Hint = engine.Pass, text+" (foreign)", ""
	}
	d.findings = append(d.findings, f)
}

// each calls change for each key that is in one map only or has another value in
// the other, those that are there now first.
func each[K comparable, V any](before, after map[K]V, order func(a, b K) int, equal func(a, b V) bool, change func(k K, text string, old, now V)) {
	for _, k := range slices.SortedFunc(maps.Keys(after), order) {
		if old, ok := before[k]; !ok {
			change(k, appeared, old, after[k])
		} else if !equal(old, after[k]) {
			change(k, differs, old, after[k])
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(before), order) {
		if now, ok := after[k]; !ok {
			change(k, vanished, before[k], now)
		}
	}
}

func same[T comparable](a, b T) bool { return a == b }

// only shows a side of a change that has a value.
func only(text string, want, have func() string) (string, string) {
	switch text {
	case appeared:
		return "", have()
	case vanished:
		return want(), ""
	}
	return want(), have()
}

func (d *differ) mounts(before, after map[Mount]int) {
	all := maps.Clone(before)
	if all == nil {
		all = map[Mount]int{}
	}
	maps.Copy(all, after)
	for _, m := range slices.SortedFunc(maps.Keys(all), compareMounts) {
		ours := d.scope.holdsMount(m)
		text := fmt.Sprintf("%s %s of %s, %s %s", m.Type, m.Source, m.Root, m.Options, m.Propagation)
		switch n := after[m] - before[m]; {
		case n > 0:
			d.add(ours, "mount", m.Point, appeared, "", text)
		case n < 0:
			d.add(ours, "mount", m.Point, vanished, text, "")
		}
	}
}

func compareMounts(a, b Mount) int {
	return cmp.Or(cmp.Compare(a.Point, b.Point), cmp.Compare(a.Source, b.Source), cmp.Compare(a.Root, b.Root),
		cmp.Compare(a.Type, b.Type), cmp.Compare(a.Options, b.Options), cmp.Compare(a.Propagation, b.Propagation),
		cmp.Compare(a.Layers, b.Layers))
}

func (d *differ) processes(before, after Snapshot) {
	var foreign []string
	gone := 0
	ours := func(id ProcessID, text, want, have string) {
		d.findings = append(d.findings, bench.Finding{Verdict: engine.Fail, Subject: fmt.Sprintf("process %d", id.Pid),
			Text: text, Want: want, Have: have, Hint: hints["process"]})
	}
	for _, id := range sortedIDs(after.Processes) {
		p := after.Processes[id]
		old, existed := before.Processes[id]
		switch {
		case !existed && before.earlier[id] && p.State == "Z":
		case !existed && p.Ours:
			ours(id, appeared, "", fmt.Sprintf("%s, state %s, child of %d, in %s", p.Name, p.State, p.Parent, p.Cgroup))
		case !existed:
			foreign = append(foreign, fmt.Sprintf("%s %d", p.Name, id.Pid))
		case p.Ours && old.State != "Z" && p.State == "Z":
			ours(id, "ended and was not waited for", old.Name+", state "+old.State, p.Name+", state Z")
		}
	}
	for _, id := range sortedIDs(before.Processes) {
		p := before.Processes[id]
		if _, exists := after.Processes[id]; exists {
			continue
		}
		// In a run's own group nobody ends but by the run; a descendant may have been anybody's.
		// One that was dead already is of an earlier attempt at the run, and waited for by now.
		if p.Ours && d.scope.claimed(p.Cgroup) && p.State != "Z" {
			ours(id, vanished, p.Name, "")
			continue
		}
		gone++
	}
	if len(foreign) == 0 && gone == 0 {
		return
	}
	have := strings.Join(foreign[:min(len(foreign), listed)], ", ")
	d.findings = append(d.findings, bench.Finding{
		Verdict: engine.Pass, Subject: "processes", Have: have,
		Text: fmt.Sprintf("%d foreign ones came and %d ended", len(foreign), gone),
	})
}

func sortedIDs(m map[ProcessID]Process) []ProcessID {
	return slices.SortedFunc(maps.Keys(m), compareIDs)
}

func compareIDs(a, b ProcessID) int {
	return cmp.Or(cmp.Compare(a.Pid, b.Pid), cmp.Compare(a.Start, b.Start))
}

func (d *differ) cgroups(before, after map[string]bool) {
	each(before, after, strings.Compare, same, func(k, text string, _, _ bool) {
		want, have := only(text, func() string { return "present" }, func() string { return "present" })
		d.add(d.scope.claimed(k), "control group", k, text, want, have)
	})
}

func (l Loop) String() string {
	if l.Name == "" {
		return l.Backing
	}
	return l.Backing + ", named " + l.Name
}

func (d *differ) loops(before, after map[string]Loop) {
	ours := func(l Loop) bool { return d.scope.holdsPath(l.Backing) || d.scope.bears(l.Name) }
	// The name is only known of new ones.
	each(before, after, strings.Compare, func(a, b Loop) bool { return a.Backing == b.Backing }, func(k, text string, old, now Loop) {
		want, have := only(text, old.String, now.String)
		d.add(ours(old) || ours(now), "loop device", k, text, want, have)
	})
}

// namespaces: a network namespace is ours if a process of ours lives in it, or if
// nobody lives in it and this process keeps it; it may let go of one. One that is
// kept by a mount alone shows among the mounts.
func (d *differ) namespaces(before, after Snapshot) {
	each(before.NetNamespaces, after.NetNamespaces, cmp.Compare, func(a, b NetNamespace) bool { return true },
		func(n uint64, text string, old, now NetNamespace) {
			ns, s := now, after
			if text == vanished {
				ns, s = old, before
			}
			ours, holder := s.holder(ns)
			ours = ours && (text == appeared || len(ns.Processes) > 0)
			want, have := only(text, func() string { return holder }, func() string { return holder })
			d.add(ours, "network namespace", fmt.Sprint(n), text, want, have)
		})
}

// holder says whose a network namespace is and who holds it.
func (s Snapshot) holder(ns NetNamespace) (ours bool, who string) {
	who = "held by " + ns.Held
	for _, id := range slices.SortedFunc(slices.Values(ns.Processes), compareIDs) {
		p := s.Processes[id]
		if who = fmt.Sprintf("held by %s %d", p.Name, id.Pid); p.Ours {
			return true, who
		}
	}
	return len(ns.Processes) == 0, who
}

func (l Link) String() string {
	text := fmt.Sprintf("%s, index %d", l.Type, l.Index)
	for _, n := range l.Names {
		text += ", also " + n
	}
	if l.moved != "" {
		text += ", now in " + l.moved
	}
	if l.within {
		text += ", its other end in a namespace of ours"
	}
	return text
}

func (d *differ) links(before, after map[string]Link) {
	ours := func(name string, l Link) bool {
		return l.within || l.moved != "" || d.scope.bears(name) || slices.ContainsFunc(l.Names, d.scope.bears)
	}
	each(before, after, strings.Compare, func(a, b Link) bool { return a.Type == b.Type && a.Index == b.Index },
		func(name, text string, old, now Link) {
			want, have := only(text, old.String, now.String)
			d.add(ours(name, old) || ours(name, now), "link", name, text, want, have)
		})
}

func (d *differ) rules(before, after map[string]Rule) {
	each(before, after, strings.Compare, func(a, b Rule) bool { return a.Text == b.Text }, func(name, text string, old, now Rule) {
		want, have := only(text, func() string { return old.Text }, func() string { return now.Text })
		d.add(old.Ours || now.Ours, "firewall", name, text, want, have)
	})
}

// sysctls: a value that changed fails, whoever changed it. Values that come and
// go do so with a link, which is reported itself, or with a module of the kernel.
func (d *differ) sysctls(before, after Snapshot) {
	each(before.Sysctls, after.Sysctls, strings.Compare, same, func(name, text string, old, now string) {
		link := linkOf(name)
		switch {
		case volatileReason(name) != "":
		case text == differs && link != "" && before.Links[link].Index != after.Links[link].Index: // of another link
		case text == differs:
			d.add(true, "sysctl", name, "has another value", old, now)
		case link == "":
			want, have := only(text, func() string { return old }, func() string { return now })
			d.add(false, "sysctl", name, text+"; a module of the kernel brings it", want, have)
		}
	})
}

func (d *differ) unread(before, after map[string]string) {
	all := maps.Clone(before)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, after)
	for _, k := range slices.Sorted(maps.Keys(all)) {
		d.findings = append(d.findings, bench.Finding{Verdict: engine.VerdictUnknown, Subject: k, Text: "could not be read", Have: all[k]})
	}
}
