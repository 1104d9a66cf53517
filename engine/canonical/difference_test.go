package canonical

import (
	"reflect"
	"testing"
)

func TestEachDifference(t *testing.T) {
	var got []string
	EachDifference("", map[string]any{"a": 1.0, "b": []any{"x", 2.0}, "c": "only", "d": []any{1.0}},
		map[string]any{"a": 1.0, "b": []any{"y", 2.0}, "d": []any{}, "e": map[string]any{"f": true}},
		func(path, a, b string) { got = append(got, path+" "+a+" "+b) })
	if want := []string{`b[0] "x" "y"`, `c "only" absent`, `d a list of 1 a list of 0`, `e absent {"f":true}`}; !reflect.DeepEqual(got, want) {
		t.Errorf("have %q", got)
	}
}
