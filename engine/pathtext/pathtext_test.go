package pathtext

import (
	"testing"
	"unicode/utf8"
)

func TestQuote(t *testing.T) {
	for name, want := range map[string]string{
		"plain/ü":   "plain/ü",
		"a\xffb":    `a\xffb`,
		`a\xffb`:    `a\x5cxffb`,
		"\xc3":      `\xc3`,
		"line\nend": "line\nend",
		"�":         "�", // the replacement character itself is a name
		"":          "",
	} {
		if got := Quote(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
	for _, text := range []string{`\`, `a\x`, `\xf`, `\n`, `\xgg`, `\u00ff`} {
		if name, err := Unquote(text); err == nil {
			t.Errorf("%q was read as %q", text, name)
		}
	}
}

func FuzzQuote(f *testing.F) {
	for _, s := range []string{"a", "\xff", `\x41`, "ü\\", "�"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		text := Quote(name)
		back, err := Unquote(text)
		if err != nil || back != name || !utf8.ValidString(text) {
			t.Errorf("%q, %q, %q, %v", name, text, back, err)
		}
	})
}
