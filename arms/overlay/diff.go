package overlay

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// listed is how many paths a comparison names; the rest is counted.
const listed = 20

// Diff compares the state that is wanted with the one that is had: a finding
// for each path, the first 20 by name, then one that counts the rest. None means
// equal. Manifests with other exclusions are not comparable: one unknown finding.
func Diff(want, have bench.StateManifest) []bench.Finding {
	if !slices.Equal(want.Exclude, have.Exclude) {
		return []bench.Finding{{
			Verdict: engine.VerdictUnknown, Subject: "state", Text: "the two states leave out other paths and cannot be compared",
			Want: strings.Join(want.Exclude, ", "), Have: strings.Join(have.Exclude, ", "),
		}}
	}
	var findings []bench.Finding
	rest := 0
	add := func(path, text, want, have string) {
		if len(findings) == listed {
			rest++
			return
		}
		findings = append(findings, bench.Finding{Verdict: engine.Fail, Subject: path, Text: text, Want: want, Have: have})
	}
	a, b := want.Entries, have.Entries
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].Path < b[0].Path:
			add(a[0].Path, "the change against the image is gone", summary(a[0]), "as in the image")
			a = a[1:]
		case len(a) == 0 || b[0].Path < a[0].Path:
			add(b[0].Path, "changed against the image", "as in the image", summary(b[0]))
			b = b[1:]
		default:
			if fields := differing(a[0], b[0]); len(fields) > 0 {
				add(a[0].Path, "differs in "+strings.Join(fields, ", "), summary(a[0]), summary(b[0]))
			}
			a, b = a[1:], b[1:]
		}
	}
	if rest > 0 {
		findings = append(findings, bench.Finding{Verdict: engine.Fail, Subject: "state", Text: fmt.Sprintf("%d more paths differ", rest)})
	}
	return findings
}

func differing(a, b bench.StateEntry) []string {
	var fields []string
	for _, f := range []struct {
		name  string
		equal bool
	}{
		{"type", a.Type == b.Type},
		{"mode", a.Mode == b.Mode},
		{"owner", a.Uid == b.Uid && a.Gid == b.Gid},
		{"size", a.Size == b.Size},
		{"content", a.Sha256 == b.Sha256},
		{"target", a.Target == b.Target},
		{"device", a.Rdev == b.Rdev},
		{"opaque", a.Opaque == b.Opaque},
		{"xattrs", maps.Equal(a.Xattrs, b.Xattrs)},
	} {
		if !f.equal {
			fields = append(fields, f.name)
		}
	}
	return fields
}

// summary is one line of an entry for a person.
func summary(e bench.StateEntry) string {
	if e.Type == "whiteout" {
		return "removed"
	}
	s := fmt.Sprintf("%s %04o %d:%d", e.Type, e.Mode, e.Uid, e.Gid)
	switch {
	case e.Size != "":
		s += fmt.Sprintf(" %s bytes %.12s", e.Size, e.Sha256)
	case e.Target != "":
		s += " -> " + e.Target
	case e.Rdev != "":
		s += " device " + string(e.Rdev)
	}
	if e.Opaque {
		s += " opaque"
	}
	for _, k := range slices.Sorted(maps.Keys(e.Xattrs)) {
		s += " " + k + "=" + e.Xattrs[k]
	}
	return s
}
