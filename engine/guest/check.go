package guest

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// What callers see of a check.
type ClosureEntry = proto.ClosureEntry

const (
	// ProgramPlace stands for the path of the checker's copy, see proto.
	ProgramPlace = proto.ProgramPlace
	// MaxProgram bounds the copy, in bytes.
	MaxProgram = proto.MaxProgram
	// CheckTime is what a check may take beside running the checker.
	CheckTime = proto.CheckTime
)

// Check is a checker to run, as proto.CheckRequest has it.
type Check struct {
	Exec    []string
	Name    string
	Program []byte
	Paths   []string
	Timeout time.Duration
}

// Checked is what came of it.
type Checked struct {
	// Result means nothing where Resolved is empty: nothing was run.
	Result
	// Resolved is the file in the guest that was run.
	Resolved string
	// Server is the digest of the guest server, read again.
	Server bench.SHA256
	// Before and After are what the run stood on, sorted by path.
	Before, After []ClosureEntry
}

// Check runs a checker in the guest and waits until it has ended or its time is
// up. The copy of its program that goes with it is gone when Check returns
// without an error. Errors as of Execute; ErrExecute also where what the checker
// stands on could not be read.
func (c *Client) Check(ctx context.Context, q Check) (Checked, error) {
	const op = "check in guest"
	if len(q.Exec) == 0 || q.Exec[0] == "" || q.Timeout <= 0 || q.Timeout > proto.MaxExecuteTimeout || len(q.Program) > MaxProgram {
		return Checked{}, fail(op, fmt.Errorf("%w: exec %q, timeout %s, program of %d bytes", engine.ErrUsage, q.Exec, q.Timeout, len(q.Program)))
	}
	timeout := (q.Timeout + time.Millisecond - 1).Truncate(time.Millisecond)
	body, err := json.Marshal(proto.CheckRequest{Exec: q.Exec, Name: q.Name, Program: q.Program, Paths: q.Paths, Timeout: timeout.Seconds()})
	if err != nil {
		return Checked{}, fail(op, err)
	}
	a, err := c.exchange(ctx, op, request{method: http.MethodPost, path: proto.PathCheck, contentType: "application/json", body: body},
		c.limits.Body, c.limits.Exchange+timeout+CheckTime)
	if err != nil {
		return Checked{}, err
	}
	switch a.status {
	case http.StatusOK, http.StatusBadRequest, http.StatusInternalServerError, http.StatusServiceUnavailable:
	default:
		return Checked{}, a.refused(op)
	}
	var r proto.CheckResponse
	if err := a.json(&r, lenient); err != nil {
		return Checked{}, fail(op, err)
	}
	out := Checked{Resolved: r.Resolved, Server: r.Server, Before: r.Before, After: r.After}
	if out.After == nil {
		out.After = r.Before
	}
	notThere := a.status == http.StatusOK && r.Status == proto.StatusError && r.Resolved == "" && r.Message != ""
	if !notThere {
		if out.Result, err = result(op, a.status, r.ExecuteResponse); err != nil {
			return Checked{}, err
		}
	}
	if err := out.valid(notThere); err != nil {
		return Checked{}, fail(op, fmt.Errorf("%w: %w", ErrProtocol, err))
	}
	return out, nil
}

// valid refuses what guestd never sends: a closure that lacks something would compare as equal.
func (c Checked) valid(notThere bool) error {
	if !notThere && !strings.HasPrefix(c.Resolved, "/") && !strings.HasPrefix(c.Resolved, ProgramPlace) {
		return fmt.Errorf("it ran %q, which is no path", clip(c.Resolved))
	}
	if b, err := hex.DecodeString(string(c.Server)); err != nil || len(b) != 32 {
		return fmt.Errorf("server digest %q is no SHA-256", clip(string(c.Server)))
	}
	for i, list := range [][]ClosureEntry{c.Before, c.After} {
		if len(list) == 0 {
			return errors.New("the checker stands on nothing")
		}
		last, resolved := "", notThere || i > 0 // the checker may have removed itself
		for _, e := range list {
			if e.Path <= last || path.Clean(e.Path) != e.Path {
				return fmt.Errorf("path %q comes after %q", clip(e.Path), clip(last))
			}
			last = e.Path
			b, err := hex.DecodeString(string(e.Sha256))
			switch e.Kind {
			case proto.EntryFile:
				if err != nil || len(b) != 32 || e.Mode == "" {
					return fmt.Errorf("%q is a file without a digest", clip(e.Path))
				}
			case proto.EntryDirectory, proto.EntryOther, proto.EntryAbsent:
				if e.Sha256 != "" {
					return fmt.Errorf("%q is no file and has a digest", clip(e.Path))
				}
			default:
				return fmt.Errorf("%q is of kind %q", clip(e.Path), clip(e.Kind))
			}
			resolved = resolved || e.Path == c.Resolved
		}
		if !resolved {
			return fmt.Errorf("what it ran, %q, is not in the list", clip(c.Resolved))
		}
	}
	return nil
}
