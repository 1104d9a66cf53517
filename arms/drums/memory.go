package drums

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/drumsbench/drumsbench/arms/image"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/engine"
)

// memory is the slot's memory, and that of the program that serves the image's
// blocks, where there is one. A slot of this arm needs nothing else beside it.
func (p *place) memory(t *tenancy) engine.Reading[engine.Memory] {
	r := procfs.SlotMemory(t.pid)
	m, known := r.Get()
	if !known || p.arm.settings.Attach == image.MethodRaw {
		return r
	}
	servers, err := p.servers()
	if err != nil {
		return engine.Unknown[engine.Memory](err.Error(), engine.ViewHost)
	}
	beside := procfs.ReadMemory(servers)
	harness, known := beside.Get()
	if !known {
		return engine.Unknown[engine.Memory]("memory of the storage daemon: "+beside.Reason(), engine.ViewHost)
	}
	m.Harness = harness.PrivateDirty
	return engine.Known(m, r.Source(), engine.ViewHost)
}

// servers are the storage daemons in the run's group of tools. A criu in it that
// works for a sibling is none.
func (p *place) servers() (pids []int, err error) {
	all, err := p.arm.tools.Pids()
	for _, pid := range all {
		exe, lerr := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if errors.Is(lerr, os.ErrNotExist) {
			continue // a tool that has ended; a daemon that has is missing below
		}
		if lerr != nil {
			return nil, lerr
		}
		if name := filepath.Base(exe); strings.HasPrefix(name, "qemu-") {
			pids = append(pids, pid)
		}
	}
	return pids, err
}
