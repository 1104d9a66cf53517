package hostview

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Scope tells what is ours from what others do on the host meanwhile. Names
// count only where they bear the run's random claim.
type Scope struct {
	// ID of the run. A control group, and every process in it, is ours if a part
	// of its path begins with "drums-<ID>"; so is a path of a mount. Links and
	// firewall rules are ours if they are named with the ID. Empty: any "drums-".
	ID string
	// Paths of ours: a mount on or of something below one of them, or a loop
	// device backed by it, is ours.
	Paths []string
	// Exclusive says that nobody else works on the host: every change of mounts,
	// control groups, loop devices, namespaces, links and firewall rules is ours.
	// Foreign processes still come and go.
	Exclusive bool
}

// claimed says whether a part of a path is named with the run's claim: drums-ID or drums-ID-….
func (s Scope) claimed(path string) bool {
	for part := range strings.SplitSeq(path, "/") {
		rest, ok := strings.CutPrefix(part, "drums-"+s.ID)
		if ok && (s.ID == "" || rest == "" || rest[0] == '-') {
			return true
		}
	}
	return false
}

// holdsPath says whether a path lies in one of ours, or bears the claim.
func (s Scope) holdsPath(path string) bool {
	return s.claimed(path) || slices.ContainsFunc(s.Paths, func(top string) bool {
		top = filepath.Clean(top)
		return path == top || strings.HasPrefix(path, top+"/")
	})
}

// holdsMount says whether a mount is ours.
func (s Scope) holdsMount(m Mount) bool {
	return s.holdsPath(m.Point) || s.holdsPath(m.Source) || s.holdsPath(m.Root) || s.holdsLayers(m.Layers)
}

// holdsLayers says whether one of an overlay's layers is ours.
func (s Scope) holdsLayers(options string) bool {
	for word := range strings.FieldsFuncSeq(options, func(r rune) bool { return strings.ContainsRune(",=:", r) }) {
		if strings.HasPrefix(word, "/") && s.holdsPath(word) {
			return true
		}
	}
	return false
}

// bears says whether a name or a comment has the claim in it. A link's name has
// room for the ID alone. The ID is random, so that it is enough wherever it is
// not a part of a longer number.
func (s Scope) bears(text string) bool {
	if s.ID == "" {
		return strings.Contains(text, "drums-")
	}
	for rest := text; ; {
		before, after, found := strings.Cut(rest, s.ID)
		if !found {
			return false
		}
		if (before == "" || !hexDigit(before[len(before)-1])) && (after == "" || !hexDigit(after[0])) {
			return true
		}
		rest = rest[len(before)+1:]
	}
}

func hexDigit(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' }

// runGroup is the control group of some run.
var runGroup = regexp.MustCompile(`^drums-[0-9a-f]{12}(-.*)?$`)

// otherRun says whether a control group belongs to a run other than ours. home
// is our own group: a run's groups lie below the group that it was started in,
// which may itself belong to one.
func (s Scope) otherRun(group, home string) bool {
	if s.ID == "" || s.claimed(group) {
		return false
	}
	if home != "/" {
		if below, ok := strings.CutPrefix(group, home); ok && (below == "" || below[0] == '/') {
			group = below
		}
	}
	return slices.ContainsFunc(strings.Split(group, "/"), runGroup.MatchString)
}
