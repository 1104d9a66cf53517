// Package markdown writes text that somebody else said into Markdown. It exists
// because several commands print tables of what records and guests say, and a cell
// that is obeyed is a link, a picture or a row of its own.
//
// What always holds: an escaped text is one line of text, whatever it holds.
package markdown

import (
	"strings"

	"github.com/drumsbench/drumsbench/engine/terminal"
)

// Escape keeps text from being Markdown or HTML: nothing in it is a link, emphasis, a
// heading, a table's bar, a tag or an entity, and it is one line (terminal.Line).
func Escape(text string) string {
	return escaper.Replace(terminal.Line(text))
}

var escaper = strings.NewReplacer(
	"<", "&lt;", ">", "&gt;", "&", "&amp;",
	`\`, `\\`, "`", "\\`", "*", `\*`, "_", `\_`, "[", `\[`, "]", `\]`, "|", `\|`, "#", `\#`, "!", `\!`, "~", `\~`,
)
