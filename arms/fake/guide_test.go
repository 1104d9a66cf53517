package fake

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drumsbench/drumsbench/engine"
)

var update = flag.Bool("update", false, "write the tables of docs/write-an-arm.md anew")

const guide = "../../docs/write-an-arm.md"

// The guide's two tables are what engine and this package say.
func TestGuide(t *testing.T) {
	b, err := os.ReadFile(guide)
	if err != nil {
		t.Fatal(err)
	}
	have := string(b)
	want := between(t, have, "capabilities", capabilityTable(t))
	want = between(t, want, "knobs", knobTable(t))
	if have == want {
		return
	}
	if *update {
		if err := os.WriteFile(guide, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("go test ./arms/fake -run Guide -update writes it anew:\n%s", cmp.Diff(have, want))
}

// between replaces what stands between the two marks of a name.
func between(t *testing.T, text, name, table string) string {
	t.Helper()
	open, end := "<!-- "+name+" -->\n", "<!-- /"+name+" -->"
	before, rest, ok := strings.Cut(text, open)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table of %s", guide, name)
	}
	return before + open + "\n" + table + "\n" + end + after
}

// capabilities are the optional interfaces, each with what of this package has it.
var capabilities = map[string]struct{ is, by reflect.Type }{
	"Adopter":          {reflect.TypeFor[engine.Adopter](), reflect.TypeFor[Outliving]()},
	"Cached":           {reflect.TypeFor[engine.Cached](), reflect.TypeFor[*root]()},
	"CheckpointOpener": {reflect.TypeFor[engine.CheckpointOpener](), reflect.TypeFor[*Arm]()},
	"Filling":          {reflect.TypeFor[engine.Filling](), reflect.TypeFor[*slot]()},
	"Heir":             {reflect.TypeFor[engine.Heir](), reflect.TypeFor[Outliving]()},
	"Fleeting":         {reflect.TypeFor[engine.Fleeting](), reflect.TypeFor[*place]()},
	"Lasting":          {reflect.TypeFor[engine.Lasting](), reflect.TypeFor[*place]()},
	"Mortal":           {reflect.TypeFor[engine.Mortal](), reflect.TypeFor[*slot]()},
	"Renamer":          {reflect.TypeFor[engine.Renamer](), reflect.TypeFor[*slot]()},
	"Surveyor":         {reflect.TypeFor[engine.Surveyor](), reflect.TypeFor[*Arm]()},
	"Telling":          {reflect.TypeFor[engine.Telling](), reflect.TypeFor[*slot]()},
}

var optional = regexp.MustCompile(`(?s)^\w+ is an optional interface of (an? \w+(?: of an? \w+)?)(?:: |\. ?)(.*)`)

// capabilityTable lists every interface of engine that says that it is optional,
// and fails for one that the fake arm does not show.
func capabilityTable(t *testing.T) string {
	t.Helper()
	rows := []string{}
	files, err := filepath.Glob("../../engine/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE || g.Doc == nil {
				continue
			}
			said := optional.FindStringSubmatch(g.Doc.Text())
			if said == nil {
				continue
			}
			spec := g.Specs[0].(*ast.TypeSpec)
			c, shown := capabilities[spec.Name.Name]
			if !shown || !c.by.Implements(c.is) {
				t.Errorf("the fake arm does not show engine.%s", spec.Name.Name)
				continue
			}
			methods := []string{}
			for i := range c.is.NumMethod() {
				methods = append(methods, "`"+c.is.Method(i).Name+"`")
			}
			what, _, _ := strings.Cut(strings.Join(strings.Fields(said[2]), " "), ". ")
			if methods := spec.Type.(*ast.InterfaceType).Methods.List; what == "" && len(methods) > 0 {
				what = strings.TrimSpace(methods[0].Doc.Text())
			}
			rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s | `%s` |", spec.Name.Name, said[1], strings.Join(methods, ", "), strings.TrimSuffix(what, "."), c.by))
		}
	}
	sort.Strings(rows)
	if len(rows) != len(capabilities) {
		t.Errorf("engine has %d optional interfaces, the test knows %d", len(rows), len(capabilities))
	}
	return "| interface | of | methods | what it says | in the fake arm |\n| --- | --- | --- | --- | --- |\n" + strings.Join(rows, "\n") + "\n"
}

var scopes = map[scope]string{scopeRun: "the run", scopeAny: "any slot", scopeCold: "provisioned slots", scopeRestored: "restored slots"}

// knobTable has each knob with its own words in the package's comment.
func knobTable(t *testing.T) string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "arm.go", nil, parser.ParseComments|parser.PackageClauseOnly)
	if err != nil {
		t.Fatal(err)
	}
	_, list, ok := strings.Cut(f.Doc.Text(), "# Faults")
	if !ok {
		t.Fatal("the package comment has no list of faults")
	}
	said, waiting := map[string]string{}, []string{}
	for line := range strings.Lines(list) {
		line = strings.TrimRight(line, "\n")
		if !strings.HasPrefix(line, "\t") {
			continue
		}
		// A line is NAME[, NAME] and, two blanks or more after it, what it does; names without it wait for a line that begins with blanks.
		names, does, _ := strings.Cut(strings.TrimPrefix(line, "\t"), "  ")
		for name := range strings.FieldsFuncSeq(names, func(r rune) bool { return r == ' ' || r == ',' }) {
			if _, knob := knobs[name]; knob {
				waiting = append(waiting, name)
			}
		}
		if does = strings.TrimSpace(does); does == "" {
			continue
		}
		for _, name := range waiting {
			said[name] = does
		}
		waiting = nil
	}
	var b strings.Builder
	b.WriteString("| knob | where | what it does |\n| --- | --- | --- |\n")
	for _, s := range []scope{scopeRun, scopeCold, scopeAny, scopeRestored} {
		for _, name := range slices.Sorted(slices.Values(Knobs())) {
			if knobs[name] != s {
				continue
			}
			if said[name] == "" {
				t.Errorf("the package comment does not say what %s does", name)
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, scopes[s], said[name])
		}
	}
	return b.String()
}
