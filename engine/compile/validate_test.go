package compile

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"cuelang.org/go/cue"
)

const receipt = `{"seq":7,"prev":"` + zeros + `","time":"2026-11-29T21:53:35.123456789Z","event":"step","step":"restore-3","kind":"restore","verdict":"pass","start":"123456789","end":"223456789","spans":[{"name":"kill","start":"0","end":"1"},{"name":"criu","start":"2","end":"3"}],"facts":[{"name":"kernel","known":true,"value":"6.18","source":"uname"}]}`

func TestValidate(t *testing.T) {
	for _, test := range []struct {
		name, definition, data string
		// want are the problems, each as "path: text"; nil for data that passes.
		want []string
	}{
		{"receipt", "Receipt", receipt, nil},
		{"whole score", "Rollout", `{"index":0,"slot":"a","warmup":false,"class":"success","before":0,"after":1}`, nil},
		{"fractional score", "Rollout", `{"index":0,"slot":"a","warmup":false,"class":"success","after":0.5}`, nil},
		{"ledger", "LedgerLine", `{"seq":0,"time":"2026-11-29T21:53:35Z","boot":"b","op":"intent","id":1,"kind":"mount","claim":{"path":"/x"}}`, nil},
		{"unknown field", "Receipt", strings.Replace(receipt, `"step":"restore-3"`, `"stp":"x"`, 1), []string{"stp: no such field"}},
		{"bad verdict", "Receipt", strings.Replace(receipt, `"pass"`, `"passed"`, 1),
			[]string{`verdict: have "passed", want "pass", "fail", "unknown", "not_run", "not_applicable" or "review_required"`}},
		{"number for text", "Receipt", strings.Replace(receipt, `"start":"0"`, `"start":0`, 1),
			[]string{`spans[0].start: have 0, want a whole number as text`}},
		{"null", "Rollout", `{"index":0,"slot":"a","warmup":false,"class":"success","after":null}`, []string{"after: have null, want a number"}},
		{"missing", "Fact", `{"name":"x"}`, []string{"missing field known"}},
		{"not an object", "Fact", `[]`, []string{"have [], want a struct"}},
		{"no JSON", "Fact", `{"name"`, []string{"invalid JSON"}},
		{"nothing", "Fact", ``, []string{"invalid JSON"}},
		{"two values", "Fact", `{"name":"x","known":true}{}`, []string{"invalid JSON"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := Validate(test.definition, []byte(test.data))
			if test.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var problems Problems
			if !errors.As(err, &problems) || len(problems) != len(test.want) {
				t.Fatalf("have %v", err)
			}
			for i, want := range test.want {
				if have := problems[i].Error(); !strings.HasPrefix(have, want) {
					t.Errorf("have %q want %q", have, want)
				}
			}
		})
	}
	if err := Validate("Nothing", []byte("{}")); err == nil {
		t.Error("a definition that is not there validated")
	}
}

// A context that is made anew judges as the one before.
func TestValidateGoesOn(t *testing.T) {
	c := &checker{}
	for i := range 3 {
		c.used = contextUses * i
		if err := c.validate("Receipt", []byte(receipt)); err != nil {
			t.Fatal(err)
		}
		if err := c.validate("Receipt", []byte(`{}`)); err == nil {
			t.Fatal("an empty receipt passed")
		}
	}
}

// Every form that is told in words stands in the schema as it is told.
func TestFormsAreOfTheSchema(t *testing.T) {
	_, schema, err := newSchema()
	if err != nil {
		t.Fatal(err)
	}
	byDefinition := map[string]bool{}
	for pattern, form := range forms() {
		if pattern == "" {
			t.Errorf("#%s has no pattern", form.definition)
		}
		byDefinition[form.definition] = true
	}
	it, err := schema.Fields(cue.Definitions(true))
	if err != nil {
		t.Fatal(err)
	}
	for it.Next() {
		w := wantOf(it.Value())
		name := strings.TrimPrefix(it.Selector().String(), "#")
		if len(w.patterns) == 1 && !w.exec && !byDefinition[name] {
			t.Errorf("#%s is told as a regular expression: %s", name, w.text())
		}
	}
}

func TestEditDistance(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"memry", "memory", 1}, {"memroy", "memory", 1}, {"drms", "drums", 1}, {"abc", "xyz", 3}, {"größe", "grösse", 2}} {
		if have := editDistance(test.a, test.b); have != test.want {
			t.Errorf("%s %s: have %d want %d", test.a, test.b, have, test.want)
		}
	}
	if near := nearest("colour", []string{"memory", "swap"}); near != "" {
		t.Errorf("%q is not near", near)
	}
}

func BenchmarkValidateReceipt(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if err := Validate("Receipt", []byte(receipt)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkValidateRecord(b *testing.B) {
	var steps, rollouts []string
	for i := range 300 {
		steps = append(steps, fmt.Sprintf(`{"step":"gate-%d","kind":"gate","verdict":"pass","nanoseconds":"1234"}`, i))
	}
	for i := range 12 {
		rollouts = append(rollouts, fmt.Sprintf(`{"index":%d,"slot":"a","warmup":false,"class":"success","before":0,"after":1,"clocks":{"mechanism":"1","ready":"2"},"spans":{"kill":"5"}}`, i))
	}
	record := fmt.Sprintf(`{"apiVersion":"bench/v1alpha1","run":"r","manifest":"locks","arm":"drums","reset":"restore","verdict":"passed",`+
		`"started":"2026-11-29T21:53:35Z","ended":"2026-11-29T21:53:35Z","engine":{"version":"x","sha256":"%s","go":"go1","schema":"bench/v1alpha1"},`+
		`"digests":{},"facts":[],"differences":[],"steps":[%s],"rollouts":[%s]}`, zeros, strings.Join(steps, ","), strings.Join(rollouts, ","))
	for b.Loop() {
		if err := Validate("Record", []byte(record)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLoad(b *testing.B) {
	dir := repository(b, plainModule)
	for b.Loop() {
		if _, err := Load(Options{Path: dir + "/locks"}); err != nil {
			b.Fatal(err)
		}
	}
}
