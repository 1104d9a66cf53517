package compile

import (
	"fmt"
	"strings"
)

// Problem is one mistake of a person, in a manifest or a recipe.
type Problem struct {
	// File as the person named it or would name it: relative to the working directory if it lies below it.
	File string `json:"file,omitempty"`
	// Line and Col count from 1; 0 where only the file or folder is known.
	Line int `json:"line,omitempty"`
	Col  int `json:"col,omitempty"`
	// Path of the field, such as "guest.services[0].exec"; empty for the whole value.
	Path string `json:"path,omitempty"`
	// Text says what is wrong.
	Text string `json:"text"`
	// Hint is the remedy, on a line of its own when shown; may be empty.
	Hint string `json:"hint,omitempty"`
}

// Error is "file:line:col: path: what", without the hint.
func (p Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", p.Line, p.Col)
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Text)
	return b.String()
}

// Problems are all mistakes that were found, in the order of the file, without
// duplicates. errors.As finds them in whatever Load and LoadRecipe return.
type Problems []Problem

// Error is one line a mistake.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives each problem to errors.As.
func (ps Problems) Unwrap() []error {
	errs := make([]error, len(ps))
	for i, p := range ps {
		errs[i] = p
	}
	return errs
}
