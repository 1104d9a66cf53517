// Package pathtext writes names of files as text of JSON: a guest may give a file any name of bytes, and JSON
// carries UTF-8 alone.
//
// Always holds: two names are never written alike, and what was written is read back as the same bytes.
package pathtext

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Quote writes each byte that is not UTF-8, and the backslash, as \xNN; any other name is written as it is.
func Quote(name string) string {
	if utf8.ValidString(name) && !strings.Contains(name, `\`) {
		return name
	}
	var b strings.Builder
	for i := 0; i < len(name); {
		r, n := utf8.DecodeRuneInString(name[i:])
		if (r == utf8.RuneError && n == 1) || r == '\\' {
			fmt.Fprintf(&b, `\x%02x`, name[i])
		} else {
			b.WriteString(name[i : i+n])
		}
		i += n
	}
	return b.String()
}

// Unquote reads what Quote wrote. Anything else is an error: a name is never guessed.
func Unquote(text string) (string, error) {
	if !strings.Contains(text, `\`) {
		return text, nil
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			b.WriteByte(text[i])
			continue
		}
		if len(text) < i+4 || text[i+1] != 'x' {
			return "", fmt.Errorf("read name of a file: %q has a backslash that no byte follows as \\xNN", text)
		}
		n, err := strconv.ParseUint(text[i+2:i+4], 16, 8)
		if err != nil {
			return "", fmt.Errorf("read name of a file: %q: %w", text, err)
		}
		b.WriteByte(byte(n))
		i += 3
	}
	return b.String(), nil
}
