package terminal

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"":                         "",
		"a\tb\nä 中 😀":              "a\tb\nä 中 😀",
		"\x1b[2J\x1b]0;title\x07":  `\u001b[2J\u001b]0;title\u0007`,
		"\u009b31mred":             `\u009b31mred`,
		"over\rwritten\b\x7f\x00":  `over\u000dwritten\u0008\u007f\u0000`,
		"a\u202eexe.txt":           `a\u202eexe.txt`,
		"bad \xff\x9b bytes\u2028": "bad \uFFFD\uFFFD bytes\\u2028",
		`"\\\u001b"`:               `"\\\u001b"`,
	} {
		if have := Text(text); have != want {
			t.Errorf("%q is %q, want %q", text, have, want)
		}
	}
}

// Whatever the text: nothing of it is obeyed, what was harmless stays, and JSON keeps its value.
func FuzzText(f *testing.F) {
	for _, s := range []string{"\x1b[2J", "\u009b", "a\r\n", "\xff", `{"a":"\u001b"}`, "{\"a\":\"\u009b\u202e\"}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		out := Text(text)
		if !utf8.ValidString(out) || strings.ContainsFunc(out, obeyed) || Text(out) != out || strings.Count(out, "\n") != strings.Count(text, "\n") {
			t.Errorf("%q is %q", text, out)
		}
		if !strings.ContainsFunc(text, obeyed) && utf8.ValidString(text) && out != text {
			t.Errorf("%q is %q", text, out)
		}
		var a, b any
		if utf8.ValidString(text) && json.Unmarshal([]byte(text), &a) == nil && !strings.ContainsRune(text, '\r') {
			if err := json.Unmarshal([]byte(out), &b); err != nil || !reflect.DeepEqual(a, b) {
				t.Errorf("%q is %q: %v", text, out, err)
			}
		}
	})
}
