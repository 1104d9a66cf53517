package steps

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// What a checker stands on in the guest, and what shows that it stood on something else.

// Lines of a closure that are no path's.
const (
	// programEntry is the file that the checker's program was found at.
	programEntry = "(program)"
	// serverEntry is the digest of the program that answers, as it runs.
	serverEntry = "(guest server)"
)

// mostChanges is how many files that changed get a finding each.
const mostChanges = 20

// closures are what the checker stood on before and after it ran, without what the task may change.
func (e *evaluation) closures(r guest.Checked) (now, late map[string]string, err error) {
	now, late = e.lines(r, r.Before), e.lines(r, r.After)
	digest, err := canonical.Digest(now)
	if err != nil {
		return nil, nil, err
	}
	e.x.Fact(
		bench.Fact{Name: FactClosure, Known: true, Value: string(digest), Source: "guest server", View: engine.ViewGuest},
		bench.Fact{Name: FactClosureFiles, Known: true, Value: fmt.Sprint(len(now)), Source: "guest server", View: engine.ViewGuest},
	)
	list, err := json.MarshalIndent(now, "", " ")
	if err != nil {
		return nil, nil, err
	}
	return now, late, e.x.Evidence("checker-closure "+e.p.When+".json", list)
}

// lines of a closure by path: kind, mode, digest and, for a link, where it leads.
func (e *evaluation) lines(r guest.Checked, list []guest.ClosureEntry) map[string]string {
	lines := map[string]string{programEntry: r.Resolved, serverEntry: string(r.Server)}
	for _, entry := range list {
		if e.mayChange(entry.Path) {
			continue
		}
		line := strings.TrimRight(strings.Join([]string{entry.Kind, entry.Mode, string(entry.Sha256)}, " "), " ")
		if e.mayChange(entry.Real) {
			// What it leads to is the task's. That the path leads there is not: a new one would be code that nobody saw.
			line = entry.Kind
		}
		if entry.Real != "" {
			line += " at " + entry.Real
		}
		if entry.Named {
			line = namedPrefix + line
		}
		lines[entry.Path] = line
	}
	return lines
}

// mayChange: the task may change what lies there.
func (e *evaluation) mayChange(file string) bool {
	return slices.ContainsFunc(e.p.Checker.MayChange, func(p bench.GuestPath) bool { return within(file, string(p)) })
}

// namedPrefix marks a program that only a shell's text names: that it appears is no change, since
// the checker did without it before; that it changes, or that the name leads elsewhere, is one.
const namedPrefix = "named "

func within(file, top string) bool {
	top = path.Clean(top)
	return file == top || top == "/" && file != "" || strings.HasPrefix(file, top+"/")
}

// Since when a closure is another one.
const (
	sinceAct   = "since the policy acted"
	sinceFirst = "since the run's first rollout"
)

// closureChanges names each file that is not as it was: first where the program
// is found, then what changed, what is new, and what is gone.
func closureChanges(before, now map[string]string, since string) []bench.Finding {
	var changed, added, gone []bench.Finding
	all := maps.Clone(before)
	maps.Copy(all, now)
	for _, p := range slices.Sorted(maps.Keys(all)) {
		was, had := before[p]
		is, has := now[p]
		f := bench.Finding{Verdict: engine.Fail, Subject: p, Want: was, Have: is,
			Hint: "no score: the checker is not the one that was pinned; if the task is to change this file, list it under checker.mayChange"}
		switch {
		case had && has && strings.TrimPrefix(was, namedPrefix) == strings.TrimPrefix(is, namedPrefix):
		case p == programEntry && is != "":
			f.Subject, f.Text = is, "the checker's program is found there "+since
			changed = append(changed, f)
		case p == programEntry:
			f.Subject, f.Text = was, "the checker's program is not found "+since
			changed = append(changed, f)
		case had && has:
			f.Text = "the checker stands on it, and it is another one " + since
			changed = append(changed, f)
		case had:
			f.Text = "the checker does not stand on it any more " + since
			gone = append(gone, f)
		case strings.HasPrefix(is, namedPrefix), strings.HasPrefix(is, proto.EntryAbsent):
		default:
			f.Text = "the checker stands on it only " + since
			added = append(added, f)
		}
	}
	found := slices.Concat(changed, added, gone)
	if left := len(found) - mostChanges; left > 0 {
		found = append(found[:mostChanges], bench.Finding{Verdict: engine.Fail, Subject: "checker", Text: fmt.Sprintf("and %d more files", left)})
	}
	return found
}

// withCaches adds to now the byte code that only late has: python wrote it for itself.
func withCaches(now, late map[string]string) map[string]string {
	out := maps.Clone(now)
	for p, line := range late {
		if _, had := now[p]; !had && (strings.Contains(p, "/__pycache__/") || path.Base(p) == "__pycache__") {
			out[p] = line
		}
	}
	return out
}

// signs are texts on a checker's standard error that say that something it needs
// was not there, each with what that is. They are few, and all messages of the
// interpreter, the loader or the shell itself: a checker's own words decide
// nothing, except that it says itself that it falls back.
var signs = []*regexp.Regexp{
	regexp.MustCompile(`(?m)^\s*(?:ModuleNotFoundError|ImportError): (.*)$`),
	regexp.MustCompile(`(?m)^.*(?:error while loading shared libraries|symbol lookup error): (.*)$`),
	regexp.MustCompile(`(?m)^ERROR: ld\.so: object (.*)$`),
	regexp.MustCompile(`(?m)^(?:\S*sh|\S+\.sh): (?:(?:line )?[0-9]+: )?(.*): (?:command )?not found$`),
	regexp.MustCompile(`(?m)^(?:/usr/bin/)?env: (.*): No such file or directory$`),
	regexp.MustCompile(`(?mi)^.*\b(?:falling back to|using fallback)\b(.*)$`),
}

// exception is how python begins to say that nobody caught one; it exits with 1 then.
var exception = regexp.MustCompile(`(?m)^Traceback \(most recent call last\):$`)

// substitutionShown is the first line that shows a substitution which the
// checker does not declare, or empty. A declared one is named in the line.
func substitutionShown(r guest.Result, c bench.Checker) string {
	for _, sign := range signs {
		for _, line := range sign.FindAllString(string(r.Stderr), -1) {
			line = strings.TrimSpace(line)
			if !slices.ContainsFunc(c.Substitutes, func(s bench.Substitute) bool { return strings.Contains(line, s.What) }) {
				return fmt.Sprintf("%q", line)
			}
		}
	}
	return ""
}
