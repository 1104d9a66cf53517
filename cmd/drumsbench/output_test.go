//go:build linux && !elsewhere

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func TestReport(t *testing.T) {
	refused := &engine.Error{
		Op: "dump slot", Step: "dump", Arm: "drums", Log: "/state/dump.log", Hint: "set locks: repair",
		Err: fmt.Errorf("%w: a lock is held", engine.ErrRefused),
		Findings: []bench.Finding{
			{Verdict: engine.Fail, Subject: "pid 7", Text: "holds a lock", Want: "none", Have: "POSIX read", Hint: "end the process"},
			{Verdict: engine.Fail, Subject: "pid 9", Text: "holds a lock"},
		},
	}
	problems := compile.Problems{
		{File: "a.cue", Line: 3, Col: 5, Path: "name", Text: "no such field", Hint: `did you mean "nam"?`},
		{File: "a.cue", Line: 4, Col: 1, Text: "missing field guest"},
	}
	for _, test := range []struct {
		name string
		err  error
		code int
		want string
	}{
		{"nothing", nil, 0, ""},
		{"said already", exitCode(4), 4, ""},
		{"said already, wrapped", fmt.Errorf("run: %w", exitCode(3)), 3, ""},
		{"plain", errors.New("boom"), 1, "drumsbench: boom\n"},
		{"usage", &engine.Error{Op: "read tag", Hint: "write -t key=value", Err: usage("no")}, 2,
			"drumsbench: read tag: no\nhint: write -t key=value\n"},
		{"unknown", &engine.Error{Op: "read limits", Err: engine.ErrUnknown}, 3, "drumsbench: read limits: unknown\n"},
		{"cancelled", &engine.Error{Op: "run", Err: context.Canceled}, 1, "drumsbench: run: context canceled\n"},
		{"refused", refused, 1, `drumsbench: dump slot: refused: a lock is held
where: step dump, arm drums
  pid 7: holds a lock (want none, have POSIX read)
  hint: end the process
  pid 9: holds a lock
hint: set locks: repair
log: /state/dump.log
`},
		{"the outermost answer wins", &engine.Error{Op: "run", Hint: "outer", Err: &engine.Error{Op: "dump", Hint: "inner", Log: "inner.log"}}, 1,
			"drumsbench: run: dump\nhint: outer\nlog: inner.log\n"},
		{"problems", problems, 1, "a.cue:3:5: name: no such field\nhint: did you mean \"nam\"?\na.cue:4:1: missing field guest\n"},
		{"problems, wrapped", &engine.Error{Op: "compile manifest", Err: problems}, 1,
			"a.cue:3:5: name: no such field\nhint: did you mean \"nam\"?\na.cue:4:1: missing field guest\ndrumsbench: compile manifest\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			g := &globals{Output: "plain", Stdout: &stdout, Stderr: &stderr}
			if code := report(g, test.err); code != test.code {
				t.Errorf("code %d want %d", code, test.code)
			}
			if stderr.String() != test.want || stdout.Len() > 0 {
				t.Errorf("have\n%swant\n%s", stderr.String(), test.want)
			}
		})
	}

	var stderr bytes.Buffer
	report(&globals{Output: "json", Stderr: &stderr}, refused)
	var have struct {
		Error message `json:"error"`
	}
	if err := json.Unmarshal(stderr.Bytes(), &have); err != nil {
		t.Fatal(err)
	}
	if have.Error.Exit != 1 || have.Error.Log != refused.Log || len(have.Error.Findings) != 2 {
		t.Errorf("have %+v", have.Error)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("no reader") }

// A result that nobody got is no success.
func TestResultThatCannotBeWritten(t *testing.T) {
	if code := run([]string{"version"}, brokenWriter{}, &bytes.Buffer{}); code != codeFailed {
		t.Errorf("code %d", code)
	}
}

// What a guest called its things moves no cursor, in text and in JSON, in results and in errors.
func TestTerminalIsNotMoved(t *testing.T) {
	const name = "a\x1b[2J\u009b31m\u202e\rb\x9b"
	hurt := &engine.Error{Op: "read " + name, Step: name, Log: name, Hint: name, Err: errors.New(name),
		Findings: []bench.Finding{{Verdict: engine.Fail, Subject: name, Text: name, Want: name, Have: name, Hint: name + "2"}}}
	var out bytes.Buffer
	for _, form := range []string{"plain", "json"} {
		report(&globals{Output: form, Stderr: &out}, hurt)
		report(&globals{Output: form, Stderr: &out}, compile.Problems{{File: name, Line: 1, Col: 1, Path: name, Text: name, Hint: name}})
	}
	if err := errors.Join(printText(&out, name), printJSON(&out, map[string]string{name: name})); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); !utf8.ValidString(text) || strings.ContainsAny(text, "\x1b\u009b\u202e\r") {
		t.Errorf("%q", text)
	}
	if n := strings.Count(out.String(), `\u001b`); n < 20 {
		t.Errorf("%d names were printed", n)
	}
}
