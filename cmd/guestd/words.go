package main

import (
	"errors"
	"strings"
)

// splitWords splits a command line as a POSIX shell would, without expanding
// anything: blanks between words, single quotes, double quotes with \" and \\,
// a backslash before any other character.
func splitWords(text string) ([]string, error) {
	var (
		words  []string
		word   strings.Builder
		inWord bool
	)
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case strings.IndexByte(" \t\r\n", c) >= 0:
			if inWord {
				words, inWord = append(words, word.String()), false
				word.Reset()
			}
			continue
		case c == '\'':
			end := strings.IndexByte(text[i+1:], '\'')
			if end < 0 {
				return nil, errors.New("a single quote is not closed")
			}
			word.WriteString(text[i+1 : i+1+end])
			i += 1 + end
		case c == '"':
			for i++; ; i++ {
				if i >= len(text) {
					return nil, errors.New("a double quote is not closed")
				}
				if text[i] == '"' {
					break
				}
				if text[i] == '\\' && i+1 < len(text) && (text[i+1] == '"' || text[i+1] == '\\') {
					i++
				}
				word.WriteByte(text[i])
			}
		case c == '\\':
			if i++; i >= len(text) {
				return nil, errors.New("nothing follows the last backslash")
			}
			word.WriteByte(text[i])
		default:
			word.WriteByte(c)
		}
		inWord = true
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}
