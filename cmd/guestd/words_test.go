package main

import (
	"slices"
	"testing"
)

func TestSplitWords(t *testing.T) {
	for text, want := range map[string][]string{
		"":                      nil,
		" \t\n":                 nil,
		"a":                     {"a"},
		" a  b\tc\n":            {"a", "b", "c"},
		`a "b c" 'd "e'`:        {"a", "b c", `d "e`},
		`"" ''`:                 {"", ""},
		`a'b'"c"d`:              {"abcd"},
		`a\ b \"c \\ \'`:        {"a b", `"c`, `\`, `'`},
		`"a\"b\\c\n" '\n'`:      {`a"b\c\n`, `\n`},
		`python -c "import os"`: {"python", "-c", "import os"},
		"a # b":                 {"a", "#", "b"},
	} {
		got, err := splitWords(text)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{`'a`, `"a`, `a\`, `"a\`, `a 'b" c`} {
		if got, err := splitWords(text); err == nil {
			t.Errorf("%q: %q", text, got)
		}
	}
}
