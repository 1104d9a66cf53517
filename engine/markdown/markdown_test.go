package markdown

import "testing"

func TestEscape(t *testing.T) {
	for text, want := range map[string]string{
		"":                               "",
		"lo is UP, 127.0.0.1/8 (1 ms)":   "lo is UP, 127.0.0.1/8 (1 ms)",
		"<img src=x> & &lt;":             "&lt;img src=x&gt; &amp; &amp;lt;",
		"![a](b) | *c* _d_ `e` # ~f~ \\": "\\!\\[a\\](b) \\| \\*c\\* \\_d\\_ \\`e\\` \\# \\~f\\~ \\\\",
		"one\n| two |\x1b[2J":            "one \\| two \\|?\\[2J",
	} {
		if have := Escape(text); have != want {
			t.Errorf("Escape(%q) = %q, want %q", text, have, want)
		}
	}
}
