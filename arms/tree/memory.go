package tree

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/image"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/engine"
)

// WithServers adds to a slot's memory that of the programs that serve the
// image's blocks, where the method of mounting it has some.
func WithServers(r engine.Reading[engine.Memory], method string, tools *cgroup.Group) engine.Reading[engine.Memory] {
	m, known := r.Get()
	if !known || method == image.MethodRaw {
		return r
	}
	pids, err := servers(tools)
	if err != nil {
		return engine.Unknown[engine.Memory]("memory of the storage daemon: "+err.Error(), engine.ViewHost)
	}
	beside := procfs.ReadMemory(pids)
	harness, known := beside.Get()
	if !known {
		return engine.Unknown[engine.Memory]("memory of the storage daemon: "+beside.Reason(), engine.ViewHost)
	}
	m.Harness += harness.PrivateDirty
	return engine.Known(m, r.Source(), engine.ViewHost)
}

// servers are the storage daemons in the run's group of tools. A criu in it that
// works for a sibling is none.
func servers(tools *cgroup.Group) (pids []int, err error) {
	all, err := tools.Pids()
	for _, pid := range all {
		exe, lerr := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if errors.Is(lerr, os.ErrNotExist) {
			continue // a tool that has ended; a daemon that has is missing to its reader
		}
		if lerr != nil {
			return nil, lerr
		}
		if strings.HasPrefix(filepath.Base(exe), "qemu-") {
			pids = append(pids, pid)
		}
	}
	return pids, err
}
