package main

// Rules of the terminal
//
//   - Standard output takes the result and nothing else, whole or not at all: a
//     result is printed when it is complete.
//   - Standard error takes everything else: errors, progress, the log.
//   - An error is one clear message: "drumsbench: " and what failed, then, each
//     on a line of its own and only if there is one: "where: ", the findings,
//     "hint: " with the remedy, "log: " with the file that has more. A mistake in
//     a manifest is file:line:col: path: what, without the program's name, so
//     that editors and people find it; its hint follows it.
//   - Lower case, no full stop, no stack trace, no text of a tool: that is in
//     the log.
//   - What a guest or somebody's file said moves no cursor and starts no control
//     sequence (engine/terminal): it is printed as \uNNNN.
//   - With -o json the result is one JSON value on standard output and an error
//     is one JSON object on standard error.
//   - Colour and cursor movement only where standard error is a terminal, and
//     never with NO_COLOR or TERM=dumb. Nothing is told by colour alone.
//   - The exit code says the outcome (see --help); text is for people.

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/terminal"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Exit codes. Those of a run are engine.ExitCode of its verdict.
const (
	codeDone    = 0
	codeFailed  = 1
	codeUsage   = 2
	codeBlocked = 3
	codeReview  = 4
)

// exitCode is the error of a command that has already said everything: it
// becomes the exit code and nothing more is printed. A run returns it with the
// code of its verdict.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// usageError is text that ends with exit code 2.
type usageError string

func (e usageError) Error() string { return string(e) }
func (e usageError) Unwrap() error { return engine.ErrUsage }

// usage is an error about the caller's words.
func usage(text string) error { return usageError(text) }

// codeOf maps an error to its exit code.
func codeOf(err error) int {
	var done exitCode
	switch {
	case err == nil:
		return codeDone
	case errors.As(err, &done):
		return int(done)
	case errors.Is(err, engine.ErrUsage):
		return codeUsage
	case errors.Is(err, engine.ErrUnknown):
		return codeBlocked
	}
	return codeFailed
}

// report prints err, if there is anything left to say, and returns its exit code.
func report(g *globals, err error) int {
	code := codeOf(err)
	var done exitCode
	if err == nil || errors.As(err, &done) {
		return code
	}
	m := messageOf(err)
	m.Exit = code
	if g.json() {
		_ = printJSON(g.Stderr, struct {
			Error message `json:"error"`
		}{m})
	} else {
		m.print(g.Stderr)
	}
	return code
}

// message is an error as it is shown.
type message struct {
	Exit     int               `json:"exit"`
	Text     string            `json:"text,omitempty"`
	Where    string            `json:"where,omitempty"`
	Problems []compile.Problem `json:"problems,omitempty"`
	Findings []bench.Finding   `json:"findings,omitempty"`
	Hint     string            `json:"hint,omitempty"`
	Log      string            `json:"log,omitempty"`
}

// messageOf gathers what the chain of err says: the outermost answer to each
// question wins.
func messageOf(err error) message {
	m := message{Text: err.Error()}
	for next := err; next != nil; {
		var e *engine.Error
		if !errors.As(next, &e) {
			break
		}
		if m.Where == "" {
			m.Where = where(e)
		}
		if m.Hint == "" {
			m.Hint = e.Hint
		}
		if m.Log == "" {
			m.Log = e.Log
		}
		if m.Findings == nil {
			m.Findings = e.Findings
		}
		next = e.Err
	}
	var problems compile.Problems
	if errors.As(err, &problems) {
		m.Problems = problems
		// Their lines stand for themselves.
		if m.Text == problems.Error() {
			m.Text = ""
		} else {
			m.Text = strings.TrimSuffix(strings.TrimSuffix(m.Text, problems.Error()), ": ")
		}
	}
	return m
}

func where(e *engine.Error) string {
	var parts []string
	if e.Step != "" {
		parts = append(parts, "step "+e.Step)
	}
	if e.Arm != "" {
		parts = append(parts, "arm "+e.Arm)
	}
	return strings.Join(parts, ", ")
}

func (m message) print(w io.Writer) {
	var b strings.Builder
	for _, p := range m.Problems {
		b.WriteString(p.Error() + "\n")
		line(&b, "hint", p.Hint)
	}
	if m.Text != "" {
		b.WriteString("drumsbench: " + m.Text + "\n")
	}
	line(&b, "where", m.Where)
	for _, f := range m.Findings {
		b.WriteString("  " + findingLine(f) + "\n")
		if f.Hint != m.Hint {
			line(&b, "  hint", f.Hint)
		}
	}
	line(&b, "hint", m.Hint)
	line(&b, "log", m.Log)
	_, _ = io.WriteString(w, terminal.Text(b.String()))
}

func line(b *strings.Builder, key, value string) {
	if value != "" {
		b.WriteString(key + ": " + value + "\n")
	}
}

// findingLine is a gate's finding on one line.
func findingLine(f bench.Finding) string {
	s := f.Subject + ": " + f.Text
	switch {
	case f.Want != "" && f.Have != "":
		s += fmt.Sprintf(" (want %s, have %s)", f.Want, f.Have)
	case f.Want != "":
		s += fmt.Sprintf(" (want %s)", f.Want)
	case f.Have != "":
		s += fmt.Sprintf(" (have %s)", f.Have)
	}
	return s
}

// printJSON writes v indented, as one write.
func printJSON(w io.Writer, v any) error {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return &engine.Error{Op: "encode result", Err: err}
	}
	return printText(w, b.String())
}

// printText writes s as one write, without what a terminal would obey: names and
// texts in it may be a guest's. A reader that went away is no success.
func printText(w io.Writer, s string) error { return printBytes(w, terminal.Text(s)) }

// printOutput writes what a program in a guest printed: as it is, but not to a terminal.
func printOutput(w io.Writer, s string) error {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return printText(w, s)
	}
	return printBytes(w, s)
}

func printBytes(w io.Writer, s string) error {
	if _, err := io.WriteString(w, s); err != nil {
		return &engine.Error{Op: "write result", Err: err}
	}
	return nil
}

// isTerminal says whether w may be drawn on: the live view asks before it moves a cursor.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}
