package qemu

import (
	"context"
	"fmt"
	"strconv"

	"github.com/drumsbench/drumsbench/arms/qmp"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Capabilities of QEMU's migration, as query-migrate-capabilities names them.
const (
	// ignoreShared has memory that is shared with a file be no part of a stream.
	ignoreShared = "x-ignore-shared"
	// mappedRAM gives each page of memory a place of its own in the file (QEMU 9.0 and newer).
	mappedRAM = "mapped-ram"
)

// saving asks QEMU what it can save with, whatever its version is, and returns
// that as facts. engine.ErrRefused where it lacks what the method needs.
func saving(ctx context.Context, m *qmp.Monitor, method string) ([]bench.Fact, error) {
	const command = "query-migrate-capabilities"
	var list []struct{ Capability string }
	if err := m.Execute(ctx, command, nil, &list); err != nil {
		return nil, err
	}
	has := map[string]bool{}
	for _, c := range list {
		has[c.Capability] = true
	}
	if method == MethodFile && !has[ignoreShared] {
		return nil, &engine.Error{Op: "save by method file", Err: fmt.Errorf("%w: this QEMU's migration has no %s among %d capabilities", engine.ErrRefused, ignoreShared, len(list)),
			Hint: `use another QEMU (` + Variable + `), or snapshot: "loadvm"`}
	}
	var facts []bench.Fact
	for _, name := range []string{ignoreShared, mappedRAM} {
		facts = append(facts, bench.Fact{Name: "qemu.capability." + name, Known: true, Value: strconv.FormatBool(has[name]), Source: command, View: engine.ViewHost})
	}
	return facts, nil
}
