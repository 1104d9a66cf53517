// Package terminal keeps what a guest or somebody's file said from being obeyed by
// the terminal that it is printed on. It exists because a command prints many
// texts, and one that forgot to look at its parts would be enough.
//
// What always holds: a text that went through Text moves no cursor, starts no
// control sequence and turns no writing direction; and a JSON text keeps its value.
package terminal

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text is s in which each character that a terminal obeys, other than line feed and
// tab, is written as \uNNNN: the controls C0, DEL and C1, the marks that change the
// writing direction, separators of lines and paragraphs. Bytes that are no UTF-8 are
// U+FFFD. In JSON such a character stands in a string only, where \uNNNN is the same.
func Text(s string) string {
	if clean(s) {
		return s
	}
	var b strings.Builder
	for _, r := range s { // bytes that are no UTF-8 come as U+FFFD
		if obeyed(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// Line is s as a part of one line: line feeds and tabs are spaces, and what cannot be printed
// is a question mark.
func Line(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return '?'
		}
		return r
	}, s)
}

func clean(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, obeyed) < 0
}

// obeyed: none of them is above U+FFFF.
func obeyed(r rune) bool {
	return r != '\n' && r != '\t' && unicode.In(r, unicode.Cc, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
}
