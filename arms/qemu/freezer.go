package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// A restored machine runs before anything in it can be asked, and what keeps its
// tree from running is the guest's freezer. That it did is read from the freezer
// itself, before the guest is told anything. The file lies in a hierarchy that is
// mounted nowhere, and is reached through the guest server's own descriptor of the
// group, whose number is looked for at the dump and is the same in each machine restored.

// factFreezer names that file.
const factFreezer = "guest.freezer"

const (
	// freezerLimit bounds what is read of the file, descriptors how many of the server's are tried.
	freezerLimit = 4 << 10
	descriptors  = 64
)

// freezer finds the file in a guest whose tree was frozen just now. No other
// group of the guest is.
func (t *tenancy) freezer(ctx context.Context) (string, error) {
	for fd := 3; fd < descriptors; fd++ {
		path := fmt.Sprintf("/proc/self/fd/%d/cgroup.events", fd)
		text, err := t.client().ReadFile(ctx, path, freezerLimit)
		switch {
		case err == nil && frozen(text):
			return path, nil
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return "", err
		}
	}
	return "", &engine.Error{Op: "find freezer of guest", Err: fmt.Errorf("%w: none of the guest server's first %d descriptors is a frozen group", engine.ErrUnknown, descriptors)}
}

// frozen reads cgroup.events (cgroup-v2.rst).
func frozen(events []byte) bool {
	return slices.Contains(strings.Split(string(events), "\n"), "frozen 1")
}

// stayed requires that the tree of a machine that was just loaded is frozen, by
// the machine's own kernel. It waits for the guest's first answer.
func (p *place) stayed(ctx context.Context, t *tenancy) error {
	const op = "hold tree"
	i := slices.IndexFunc(t.from.Handle.Facts, func(f bench.Fact) bool { return f.Name == factFreezer && f.Known })
	if i < 0 {
		return &engine.Error{Op: op, Err: fmt.Errorf("%w: the handle lacks the fact %s", engine.ErrRefused, factFreezer), Hint: "make the checkpoint again"}
	}
	path := t.from.Handle.Facts[i].Value
	var events []byte
	err := p.until(ctx, t, func() (err error) {
		events, err = t.client().ReadFile(ctx, path, freezerLimit)
		return err
	})
	if err == nil && !frozen(events) {
		err = fmt.Errorf("%w: the tree of the restored machine is not frozen: %q", engine.ErrRefused, events)
	}
	if err != nil {
		return &engine.Error{Op: op, Err: err, Hint: "make the checkpoint again; what it holds was not stopped when it was saved"}
	}
	return nil
}
