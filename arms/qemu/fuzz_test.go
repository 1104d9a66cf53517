package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/arms/qmp"
	"github.com/drumsbench/drumsbench/engine"
)

// lies answers each command with the next of what it is to say, as QEMU would, and
// hangs up after the last: a value is returned, one behind "!" is an error, one
// behind "*" comes after so many events, one behind "?" goes to another command.
func lies(c net.Conn, say []string) (said func() []string) {
	done := make(chan []string, 1)
	go func() {
		var used []string
		defer func() { done <- used }()
		defer c.Close()
		if _, err := fmt.Fprintln(c, `{"QMP": {"version": {"qemu": {"major": 7}, "package": ""}, "capabilities": []}}`); err != nil {
			return
		}
		in := bufio.NewScanner(c)
		for first := true; in.Scan(); first = false {
			var q struct{ ID json.RawMessage }
			if json.Unmarshal(in.Bytes(), &q) != nil {
				return
			}
			value := "{}"
			if !first { // the negotiation
				if len(say) == 0 {
					return
				}
				value, say = say[0], say[1:]
				used = append(used, value)
			}
			for strings.HasPrefix(value, "*") {
				fmt.Fprintln(c, `{"event": "STOP"}`)
				value = value[1:]
			}
			id := string(q.ID)
			if v, other := strings.CutPrefix(value, "?"); other {
				value, id = v, `"drums-999"`
			}
			kind := "return"
			if v, failed := strings.CutPrefix(value, "!"); failed {
				kind, value = "error", v
			}
			if _, err := fmt.Fprintf(c, `{"%s": %s, "id": %s}`+"\n", kind, value, id); err != nil {
				return
			}
		}
	}()
	return func() []string { return <-done }
}

// verbs are what the arm asks of a machine, each with what QEMU has to have said, at
// the last but so many answers, before it counts as done.
var verbs = []struct {
	name string
	do   func(context.Context, *tenancy) error
	// want are texts of one answer; from is its place from the end.
	want []string
	from int
}{
	{"snapshot-save", func(ctx context.Context, t *tenancy) error { return t.job(ctx, "snapshot-save") }, []string{"drums", "concluded"}, 1},
	{"snapshot-load", func(ctx context.Context, t *tenancy) error { return t.job(ctx, "snapshot-load") }, []string{"drums", "concluded"}, 1},
	{"stop", func(ctx context.Context, t *tenancy) error { return t.stop(ctx) }, []string{"paused"}, 0},
	{"cont", func(ctx context.Context, t *tenancy) error { return t.cont(ctx) }, []string{"running"}, 0},
	{"load", func(ctx context.Context, t *tenancy) error {
		loaded, err := t.loadState(ctx, ignoreShared)
		if err == nil {
			loaded.stop()
		}
		return err
	}, []string{"paused"}, 0},
	{"hardware", func(ctx context.Context, t *tenancy) error { _, _, err := t.hardware(ctx); return err }, nil, 0},
	{"accelerator", func(ctx context.Context, t *tenancy) error { _, err := accelerator(ctx, t.mon.qmp); return err }, nil, 0},
	{"capabilities", func(ctx context.Context, t *tenancy) error {
		_, err := saving(ctx, t.mon.qmp, MethodFile)
		return err
	}, []string{ignoreShared}, 0},
}

// FuzzLyingQEMU has QEMU answer the arm's commands with anything. The arm neither
// panics nor hangs, each failure is of a kind, and nothing counts as done that QEMU
// did not say.
func FuzzLyingQEMU(f *testing.F) {
	const concluded = `[{"id": "drums", "status": "concluded"}]`
	for verb, scripts := range map[int][]string{
		0: {"{}\n" + concluded + "\n{}", "{}\n[{\"id\": \"drums\", \"status\": \"running\"}]\n" + concluded + "\n{}", "{}\n[]\n{}", "{}\n[{\"id\": \"drums\", \"status\": \"concluded\", \"error\": \"no\"}]\n{}",
			"{}\n[{\"id\": \"other\", \"status\": \"concluded\"}]\n{}", "{}\n" + concluded + "\n!{\"class\": \"a\", \"desc\": \"b\"}", "{}\nnull\n{}", "{}\n" + concluded},
		1: {"!{\"class\": \"GenericError\", \"desc\": \"no such snapshot\"}", "{}\n***" + concluded + "\n{}", "?{}"},
		2: {"{}\n{\"status\": \"paused\", \"running\": false}", "{}\n{\"status\": \"paused\", \"running\": true}", "{}\n{\"status\": \"running\", \"running\": true}", "{}\n{}"},
		3: {"{}\n{\"status\": \"running\", \"running\": true}", "{}\n{\"status\": \"running\"}", "null\nnull"},
		4: {"{}\n{}\n{\"status\": \"inmigrate\"}\n{\"status\": \"paused\"}", "{}\n{}\n{\"status\": \"postmigrate\"}"},
		5: {"[{\"thread-id\": 1}]\n{\"base-memory\": 5, \"plugged-memory\": 0}", "{}\n{}", "[]\n[]"},
		6: {"{\"enabled\": true, \"present\": true}", "{\"enabled\": 1}", "[]"},
		7: {"[{\"capability\": \"x-ignore-shared\", \"state\": false}]", "[{}]", "{\"capability\": \"x-ignore-shared\"}"},
	} {
		for _, s := range scripts {
			f.Add(byte(verb), s)
		}
	}
	f.Fuzz(func(t *testing.T, verb byte, script string) {
		v := verbs[int(verb)%len(verbs)]
		ours, theirs := net.Pipe()
		lines := strings.Split(script, "\n")
		said := lies(theirs, lines[:min(len(lines), 100)]) // each may cost the time between two questions
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		m, err := qmp.Open(ctx, ours, qmp.Options{Line: 64 << 10})
		if err != nil {
			t.Fatal(err)
		}
		tenancy := &tenancy{tool: Tool{Version: "7.2.0"}}
		tenancy.mon.qmp, tenancy.mon.users = m, 1
		err = v.do(ctx, tenancy)
		m.Disconnect()
		answers := said()
		var typed *engine.Error
		var refused *qmp.CommandError
		switch {
		case ctx.Err() != nil:
			t.Errorf("%s hung on %q", v.name, script)
		case err == nil:
			at := len(answers) - 1 - v.from
			if at < 0 {
				t.Fatalf("%s is done, and QEMU said %q", v.name, answers)
			}
			for _, want := range v.want {
				if !slices.Contains(texts(answers[at]), want) {
					t.Errorf("%s is done, and QEMU said %q, not %q", v.name, answers, want)
				}
			}
		case !errors.As(err, &typed) && !errors.As(err, &refused) && !errors.Is(err, qmp.ErrProtocol) && !errors.Is(err, qmp.ErrTooLarge) && !errors.Is(err, engine.ErrDead) &&
			!errors.Is(err, engine.ErrUnknown) && !errors.Is(err, engine.ErrRefused):
			t.Errorf("%s of %q: an error of no kind: %v", v.name, script, err)
		}
	})
}

// texts are all strings in a JSON value, wherever they are.
func texts(value string) (list []string) {
	var v any
	if json.Unmarshal([]byte(strings.TrimLeft(value, "*")), &v) != nil {
		return nil
	}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case string:
			list = append(list, v)
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			for _, e := range v {
				walk(e)
			}
		}
	}
	walk(v)
	return list
}
