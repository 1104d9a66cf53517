package canonical

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// EachDifference calls f with the path and both values, as JSON, of each field
// in which two decoded JSON values differ; "absent" stands for a field that only
// one of them has. Lists of unequal length differ as a whole.
func EachDifference(path string, a, b any, f func(path, a, b string)) {
	if reflect.DeepEqual(a, b) {
		return
	}
	switch x := a.(type) {
	case map[string]any:
		y, ok := b.(map[string]any)
		if !ok {
			break
		}
		keys := maps.Clone(x)
		maps.Copy(keys, y)
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			below := key
			if path != "" {
				below = path + "." + key
			}
			left, inLeft := x[key]
			right, inRight := y[key]
			switch {
			case !inLeft:
				f(below, "absent", shortJSON(right))
			case !inRight:
				f(below, shortJSON(left), "absent")
			default:
				EachDifference(below, left, right, f)
			}
		}
		return
	case []any:
		y, ok := b.([]any)
		if !ok || len(x) != len(y) {
			break
		}
		for i := range x {
			EachDifference(fmt.Sprintf("%s[%d]", path, i), x[i], y[i], f)
		}
		return
	}
	f(path, shortJSON(a), shortJSON(b))
}

// shortJSON is a value on a line.
func shortJSON(v any) string {
	if list, ok := v.([]any); ok {
		return fmt.Sprintf("a list of %d", len(list))
	}
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	const most = 80
	if runes := []rune(string(data)); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return string(data)
}
