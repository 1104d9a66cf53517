// Package footprint reads what an arm needs of a host: its programs, the packages
// that those come from with all that they depend on, their sizes, and the
// privileges.
//
// Always holds: sizes and packages are of the files and of dpkg's database as they
// are now; nothing is started; what cannot be read is named.
package footprint

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Program is one that an arm may start.
type Program struct {
	// Path of the file.
	Path string
	// Folder of a private copy that the program is in, with its libraries; empty for a program of the host's.
	Folder string
	// Packages that the copy was made from.
	Packages []string
}

// Need is a privilege.
type Need struct {
	Name, Why string
	// Capability by number; Device by path where that is not empty.
	Capability uint
	Device     string
}

// Host is where it is read.
type Host struct {
	// DPKG is the folder of dpkg's database.
	DPKG string
	// Effective is the mask of the process's effective capabilities.
	Effective func() (uint64, error)
}

// This host.
func This() Host {
	return Host{DPKG: "/var/lib/dpkg", Effective: func() (uint64, error) {
		text, err := os.ReadFile("/proc/self/status")
		if err != nil {
			return 0, err
		}
		_, rest, _ := strings.Cut(string(text), "CapEff:\t")
		value, _, _ := strings.Cut(rest, "\n")
		return strconv.ParseUint(value, 16, 64)
	}}
}

// Read tells what the programs and needs are.
func (h Host) Read(programs []Program, needs []Need) bench.Footprint {
	out := bench.Footprint{Programs: []bench.FootprintProgram{}, Packages: []string{}, Privileges: []bench.Privilege{}, Unknown: map[string]string{}}
	var roots []string
	paths := map[string]bool{}
	for _, p := range programs {
		if p.Folder == "" {
			paths[p.Path] = true
		}
	}
	owners, err := owners(h.DPKG, paths)
	if err != nil {
		out.Unknown["packages"] = err.Error()
	}
	for _, p := range programs {
		one := bench.FootprintProgram{Path: p.Path, Package: owners[p.Path], Copied: p.Packages}
		size, err := sizeOf(p)
		if err != nil {
			out.Unknown[p.Path] = err.Error()
			continue
		}
		one.Bytes = bench.Int64(strconv.FormatInt(size, 10))
		if one.Package != "" && !slices.Contains(roots, one.Package) {
			roots = append(roots, one.Package)
		}
		out.Programs = append(out.Programs, one)
	}
	if err == nil {
		h.packages(&out, roots)
	}
	mask, err := h.Effective()
	if err != nil {
		out.Unknown["privileges"] = err.Error()
		return out
	}
	for _, n := range needs {
		held := mask&(1<<n.Capability) != 0
		if n.Device != "" {
			held = unix.Access(n.Device, unix.R_OK|unix.W_OK) == nil
		}
		out.Privileges = append(out.Privileges, bench.Privilege{Name: n.Name, Why: n.Why, Held: held})
	}
	if len(out.Unknown) == 0 {
		out.Unknown = nil
	}
	return out
}

func (h Host) packages(out *bench.Footprint, roots []string) {
	db, err := readStatus(filepath.Join(h.DPKG, "status"))
	if err != nil {
		out.Unknown["packages"] = err.Error()
		return
	}
	sum := int64(0)
	for _, name := range db.closure(roots) {
		p := db.installed[name]
		sum += p.size
		out.Packages = append(out.Packages, name+"="+p.version)
	}
	slices.Sort(out.Packages)
	out.Installed = bench.Int64(strconv.FormatInt(sum, 10))
}

// sizeOf a program, or of the whole copy that it is in.
func sizeOf(p Program) (int64, error) {
	if p.Folder != "" {
		return engine.DiskUse(p.Folder)
	}
	info, err := os.Stat(p.Path)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
