package guest

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func validCheck() proto.CheckResponse {
	exit, sum := 4, bench.SHA256(strings.Repeat("ab", 32))
	return proto.CheckResponse{
		ExecuteResponse: proto.ExecuteResponse{Status: proto.StatusSuccess, Output: "out", Returncode: &exit},
		Resolved:        "/usr/bin/test", Server: sum,
		Before: []ClosureEntry{{Path: "/etc/ld.so.preload", Kind: proto.EntryAbsent}, {Path: "/usr/bin/test", Kind: proto.EntryFile, Mode: "0755", Sha256: sum}},
	}
}

func TestCheckAnswers(t *testing.T) {
	want := validCheck()
	h := serve(t, Limits{}, say(jsonReply(200, text(t, want))))
	got, err := h.Check(t.Context(), Check{Exec: []string{"test", "-d", "/"}, Name: "c", Program: []byte{0, 1}, Paths: []string{"/x"}, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if got.Exit != 4 || string(got.Stdout) != "out" || got.Resolved != want.Resolved || got.Server != want.Server {
		t.Errorf("%+v", got)
	}
	if diff := cmp.Diff(want.Before, got.After); diff != "" { // absent is as before
		t.Error(diff)
	}
	q := <-h.requests
	var asked proto.CheckRequest
	if err := json.NewDecoder(q.Body).Decode(&asked); err != nil || q.URL.Path != "/check" {
		t.Fatalf("%v %s", err, q.URL)
	}
	if diff := cmp.Diff(proto.CheckRequest{Exec: []string{"test", "-d", "/"}, Name: "c", Program: []byte{0, 1}, Paths: []string{"/x"}, Timeout: 1}, asked); diff != "" {
		t.Error(diff)
	}
}

// A program that is not there is an answer; a time-out is one too, with what it stood on.
func TestCheckOutcomes(t *testing.T) {
	gone := validCheck()
	gone.Status, gone.Message, gone.Returncode, gone.Resolved = proto.StatusError, "no such program", nil, ""
	h := serve(t, Limits{}, say(jsonReply(200, text(t, gone))))
	if r, err := h.Check(t.Context(), Check{Exec: []string{"x"}, Timeout: time.Second}); err != nil || r.Resolved != "" || len(r.Before) != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	late := validCheck()
	late.Status, late.Message, late.Returncode, late.TimedOut = proto.StatusError, "timed out", nil, true
	h = serve(t, Limits{}, say(jsonReply(500, text(t, late))))
	if r, err := h.Check(t.Context(), Check{Exec: []string{"x"}, Timeout: time.Second}); err != nil || !r.TimedOut || len(r.Before) != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	for name, c := range map[string]struct {
		status int
		body   string
		want   error
	}{
		"not read":     {500, `{"status": "error", "message": "read /x: input/output error"}`, ErrExecute},
		"failed":       {503, `{"status": "error", "message": "service x ended"}`, engine.ErrDead},
		"an old guest": {404, `{"error": "no such request"}`, ErrProtocol},
	} {
		h := serve(t, Limits{}, say(jsonReply(c.status, c.body)))
		if r, err := h.Check(t.Context(), Check{Exec: []string{"x"}, Timeout: time.Second}); !errors.Is(err, c.want) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	if _, err := h.Check(t.Context(), Check{Exec: []string{"x"}}); !errors.Is(err, engine.ErrUsage) {
		t.Errorf("no timeout: %v", err)
	}
}

// A list that lacks something, or is not one, would compare as equal.
func TestCheckWithoutSubstance(t *testing.T) {
	for name, change := range map[string]func(*proto.CheckResponse){
		"no closure":         func(r *proto.CheckResponse) { r.Before = nil },
		"no server":          func(r *proto.CheckResponse) { r.Server = "" },
		"no path":            func(r *proto.CheckResponse) { r.Resolved = "test" },
		"ran something else": func(r *proto.CheckResponse) { r.Resolved = "/usr/bin/true" },
		"not sorted":         func(r *proto.CheckResponse) { r.Before[0], r.Before[1] = r.Before[1], r.Before[0] },
		"twice":              func(r *proto.CheckResponse) { r.Before = append(r.Before, r.Before[1]) },
		"file of no digest":  func(r *proto.CheckResponse) { r.Before[1].Sha256 = "" },
		"digest of nothing":  func(r *proto.CheckResponse) { r.Before[0].Sha256 = r.Server },
		"kind":               func(r *proto.CheckResponse) { r.Before[0].Kind = "" },
		"after without end":  func(r *proto.CheckResponse) { r.After = []ClosureEntry{{Path: "/x", Kind: "?"}} },
		"no exit":            func(r *proto.CheckResponse) { r.Returncode = nil },
	} {
		r := validCheck()
		change(&r)
		h := serve(t, Limits{}, say(jsonReply(200, text(t, r))))
		if got, err := h.Check(t.Context(), Check{Exec: []string{"x"}, Timeout: time.Second}); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
