package steps

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// host compares what the guest server says of the closure with what the host sees
// of the slot's file system, as far as the arm sees it: a guest server that was
// made to lie says that all is as it was. Where the view is the host's and could
// not be had, there is no score.
func (e *evaluation) host(ctx context.Context, slot engine.Slot, r guest.Checked) ([]bench.Finding, error) {
	reading := slot.Observe(ctx, engine.AspectState).State
	state, known := reading.Get()
	if !known {
		e.x.Fact(bench.Fact{Name: FactClosureHost, Reason: reading.Reason(), View: reading.View()})
		if reading.View() == engine.ViewGuest { // the arm has no other view
			return nil, nil
		}
		return nil, noScore("the host does not see what the checker stands on: %s", reading.Reason())
	}
	found, compared := newSeen(state).disagree(r.Before)
	e.x.Fact(bench.Fact{Name: FactClosureHost, Known: true, Value: fmt.Sprintf("%d files that differ from the image compared", compared), Source: reading.Source(), View: reading.View()})
	return found, nil
}

// seen is what the host sees of a slot's files: the paths that differ from the
// image. What it does not name is as in the image, or excluded.
type seen struct {
	entries map[string]bench.StateEntry
	exclude []string
}

func newSeen(state bench.StateManifest) seen {
	h := seen{entries: map[string]bench.StateEntry{}, exclude: state.Exclude}
	for _, s := range state.Entries {
		h.entries[s.Path] = s
	}
	return h
}

// mostLinks is how many symbolic links the kernel follows (path_resolution(7)).
const mostLinks = 40

// place is where a path leads.
type place struct {
	// at has no symbolic link that the host sees.
	at string
	// decided: the host sees what is there, and that is entry; its type is a
	// whiteout where nothing is there. If not, it is the image's or excluded.
	decided bool
	entry   bench.StateEntry
}

// resolve follows a path, its folders as well: what lies below a link, a file or
// nothing is not what the image has there.
func (h seen) resolve(file string) place {
	at := path.Clean(file)
	for range mostLinks {
		next, p := h.walk(at)
		if next == "" {
			return p
		}
		at = next
	}
	return place{at: at, decided: true, entry: bench.StateEntry{Type: "whiteout"}}
}

// walk goes from the root to a path. next is where a link on the way leads, or empty.
func (h seen) walk(at string) (next string, p place) {
	hidden := false // what the image has there
	for end := 1; end <= len(at); end++ {
		if end < len(at) && at[end] != '/' {
			continue
		}
		s, differs := h.entries[at[:end]]
		switch {
		case !differs:
			if hidden && !h.excluded(at[:end]) {
				return "", place{at: at, decided: true, entry: bench.StateEntry{Type: "whiteout"}}
			}
			continue
		case s.Type == "symlink":
			target := s.Target
			if !path.IsAbs(target) {
				target = path.Join(path.Dir(at[:end]), target)
			}
			return path.Join(target, at[end:]), place{}
		case end == len(at):
			return "", place{at: at, decided: true, entry: s}
		case s.Type != "directory":
			return "", place{at: at, decided: true, entry: bench.StateEntry{Type: "whiteout"}}
		}
		hidden = hidden || s.Opaque
	}
	return "", place{at: at}
}

func (h seen) excluded(file string) bool {
	return slices.ContainsFunc(h.exclude, func(x string) bool { return within(file, x) })
}

// disagree compares each entry of a closure with what is seen, and says how many could be.
func (h seen) disagree(list []guest.ClosureEntry) (found []bench.Finding, compared int) {
	for _, entry := range list {
		if !path.IsAbs(entry.Path) { // the checker's copy, which is gone by now
			continue
		}
		have, decided := h.against(entry)
		if decided {
			compared++
		}
		if have == "" {
			continue
		}
		if len(found) == mostChanges {
			return append(found, bench.Finding{Verdict: engine.Fail, Subject: "checker", Text: "and more files"}), compared
		}
		found = append(found, bench.Finding{Verdict: engine.Fail, Subject: entry.Path,
			Text: "the host sees another file than the guest server says that the checker stands on",
			Want: have, Have: strings.TrimSpace(entry.Kind + " " + string(entry.Sha256)),
			Hint: "the guest server cannot be trusted in this rollout"})
	}
	return found, compared
}

// against is what the host sees instead of an entry, empty where they agree or
// the host sees nothing of it.
func (h seen) against(entry guest.ClosureEntry) (have string, decided bool) {
	real := entry.Path
	if entry.Real != "" {
		real = entry.Real
	}
	for _, from := range slices.Compact([]string{entry.Path, real}) {
		p := h.resolve(from)
		decided = decided || p.decided
		agrees := true
		if p.decided {
			agrees = sameKind(p.entry, entry) && (entry.Kind == proto.EntryAbsent || p.at == real)
		} else if p.at != from {
			// A link that the host sees leads to what it does not see.
			decided = true
			agrees = from != real && h.excluded(p.at) == h.excluded(real) || entry.Kind == proto.EntryAbsent
		}
		if !agrees {
			return strings.TrimSpace(strings.TrimSpace(p.entry.Type+" "+string(p.entry.Sha256)) + " at " + p.at), true
		}
	}
	return "", decided
}

// sameKind: a state's entry is what a closure's says.
func sameKind(s bench.StateEntry, entry guest.ClosureEntry) bool {
	switch s.Type {
	case "file":
		return entry.Kind == proto.EntryFile && s.Sha256 == entry.Sha256
	case "directory":
		return entry.Kind == proto.EntryDirectory
	case "whiteout":
		return entry.Kind == proto.EntryAbsent
	case "char", "block", "fifo", "socket":
		return entry.Kind == proto.EntryOther
	}
	return false
}
