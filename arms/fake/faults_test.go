package fake

import (
	"errors"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func TestUnknownFaultIsUsage(t *testing.T) {
	for _, word := range []string{"no-such-fault", "lock-lots", "", "lock-lost@", "lock-lost@0", "lock-lost@-1", "lock-lost@warm",
		"mount-refused@2", "provision-error@restored", "lock-lost@cold"} {
		_, err := New(bench.FakeSettings{Faults: []string{word}})
		if !errors.Is(err, engine.ErrUsage) {
			t.Errorf("fault %q: %v, want engine.ErrUsage", word, err)
		}
		var e *engine.Error
		if !errors.As(err, &e) || e.Hint == "" {
			t.Errorf("fault %q: no hint in %v", word, err)
		}
	}
	_, err := New(bench.FakeSettings{Faults: []string{"no-such-fault"}})
	for _, name := range Knobs() {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("the error does not list %s: %v", name, err)
		}
	}
}

func TestEveryFaultIsDocumented(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "arm.go", nil, parser.ParseComments|parser.PackageClauseOnly)
	if err != nil {
		t.Fatal(err)
	}
	words := strings.FieldsFunc(f.Doc.Text(), func(r rune) bool { return strings.ContainsRune(" \t\n,", r) })
	for _, name := range Knobs() {
		if !slices.Contains(words, name) {
			t.Errorf("the package comment does not say what %s does", name)
		}
	}
}

func TestFaultsSayWhereTheyAre(t *testing.T) {
	f, err := parseFaults([]string{"limits-ignored", "task-outside@restored", "tool-config@cold", "lock-lost@3", "slow@2", "slow@4"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		restored bool
		nth      int
		want     bool
	}{
		{"limits-ignored", false, 1, true}, {"limits-ignored", true, 2, true},
		{"task-outside", false, 1, false}, {"task-outside", true, 2, true},
		{"tool-config", false, 1, true}, {"tool-config", true, 2, false},
		{"lock-lost", true, 2, false}, {"lock-lost", true, 3, true}, {"lock-lost", true, 4, false},
		{"slow", false, 1, false}, {"slow", true, 2, true}, {"slow", true, 3, false}, {"slow", true, 4, true},
		{"token-lost", true, 2, false},
	} {
		if got := f.slot(c.name, c.restored, c.nth); got != c.want {
			t.Errorf("%s in slot %d (restored %v): %v, want %v", c.name, c.nth, c.restored, got, c.want)
		}
	}
	want := []string{"limits-ignored", "lock-lost@3", "slow@2", "slow@4", "task-outside@restored", "tool-config@cold"}
	if got := f.names(); !slices.Equal(got, want) {
		t.Errorf("settings %q, want %q", got, want)
	}
}
