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

// capabilities are what QEMU's migration can do, by what it says and not by its version.
type capabilities map[string]bool

// saving asks QEMU what it can save with. engine.ErrRefused where it lacks what
// the method needs.
func saving(ctx context.Context, m *qmp.Monitor, method string) (capabilities, error) {
	var list []struct{ Capability string }
	if err := m.Execute(ctx, queryCapabilities, nil, &list); err != nil {
		return nil, err
	}
	has := capabilities{}
	for _, c := range list {
		has[c.Capability] = true
	}
	if method == MethodFile && !has[ignoreShared] {
		return nil, &engine.Error{Op: "save by method file", Err: fmt.Errorf("%w: this QEMU's migration has no %s among %d capabilities", engine.ErrRefused, ignoreShared, len(list)),
			Hint: `use another QEMU (` + Variable + `), or snapshot: "loadvm"`}
	}
	return has, nil
}

const queryCapabilities = "query-migrate-capabilities"

func (c capabilities) facts() (facts []bench.Fact) {
	for _, name := range []string{ignoreShared, mappedRAM} {
		facts = append(facts, bench.Fact{Name: "qemu.capability." + name, Known: true, Value: strconv.FormatBool(c[name]), Source: queryCapabilities, View: engine.ViewHost})
	}
	return facts
}
