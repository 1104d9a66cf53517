//go:build linux && !elsewhere

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/doctor"
	"github.com/drumsbench/drumsbench/arms/footprint"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/density"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// footprints that were read: what programs there are does not change while this one runs.
var footprints sync.Map

// footprintFact is what an arm with these programs needs of the host, as the JSON
// of bench.Footprint. The engine itself comes first, and what takes the image apart.
func footprintFact(programs []footprint.Program, needs []footprint.Need) bench.Fact {
	f := bench.Fact{Name: density.FootprintFact, View: engine.ViewHost}
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		f.Reason = err.Error()
		return f
	}
	list := append([]footprint.Program{{Path: self}}, programs...)
	for _, name := range []string{"qemu-img", "qemu-storage-daemon"} {
		if path, err := exec.LookPath(name); err == nil {
			list = append(list, footprint.Program{Path: path})
		}
	}
	key := fmt.Sprint(list, needs)
	if known, ok := footprints.Load(key); ok {
		return known.(bench.Fact)
	}
	text, err := canonical.JSON(footprint.This().Read(list, needs))
	if err != nil {
		f.Reason = err.Error()
		return f
	}
	f.Known, f.Value, f.Source = true, string(text), "sizes of files, dpkg's database, /proc/self/status"
	footprints.Store(key, f)
	return f
}

// criuProgram is a criu as part of a footprint.
func criuProgram(t criu.Tool) footprint.Program {
	p := footprint.Program{Path: t.Path}
	if t.Origin == "closure" {
		p.Folder = filepath.Dir(filepath.Dir(t.Path))
		for _, one := range t.Packages {
			p.Packages = append(p.Packages, one.Name+"="+one.Version)
		}
	}
	return p
}

// machineNeeds of the arm whose slots are machines.
func machineNeeds(accel string) []footprint.Need {
	needs := doctor.Needs(true)
	if accel == "kvm" {
		needs = append(needs, footprint.Need{Name: "/dev/kvm", Why: "instructions are emulated", Device: "/dev/kvm"})
	}
	return needs
}
