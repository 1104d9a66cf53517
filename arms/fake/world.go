package fake

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// serverPath and serverProgram are the guest server of every fake image.
const (
	serverPath    = "/usr/local/bin/guestd"
	serverProgram = "the guest server of the fake arm, version " + Version + "\n"
)

// ServerSHA256 is what a manifest for this arm pins as guest.server.sha256.
func ServerSHA256() bench.SHA256 { return digest([]byte(serverProgram)) }

func digest(b []byte) bench.SHA256 {
	sum := sha256.Sum256(b)
	return bench.SHA256(hex.EncodeToString(sum[:]))
}

// file is one path of a slot.
type file struct {
	Directory bool   `json:"directory,omitempty"`
	Mode      int64  `json:"mode"`
	Data      []byte `json:"data,omitempty"`
}

// image is what every slot starts from.
func image() map[string]file {
	m := map[string]file{}
	for _, d := range []string{"/", "/root", "/tmp", "/run", "/etc", "/usr", "/usr/bin", "/usr/local", "/usr/local/bin"} {
		m[d] = file{Directory: true, Mode: 0o755}
	}
	for _, name := range builtins {
		m["/usr/bin/"+name] = file{Mode: 0o755, Data: builtin(name)}
	}
	m["/etc/machine-id"] = file{Mode: 0o444, Data: []byte("0123456789abcdef0123456789abcdef\n")}
	m["/etc/motd"] = file{Mode: 0o644, Data: []byte("fake\n")}
	m[serverPath] = file{Mode: 0o755, Data: []byte(serverProgram)}
	return m
}

// memory is what lives in a slot besides its files: what a checkpoint's images hold.
type memory struct {
	Hostname  string               `json:"hostname"`
	Home      string               `json:"home"`
	Port      int                  `json:"port"`
	Processes []bench.Process      `json:"processes"`
	Locks     []bench.Lock         `json:"locks"`
	Mounts    []bench.Mount        `json:"mounts"`
	Network   bench.Network        `json:"network"`
	Services  []proto.ServiceState `json:"services"`
	Server    bench.SHA256         `json:"server"`
	Token     string               `json:"token"`
	Counter   uint64               `json:"counter"`
	// Uploaded are the files that came in through the guest server.
	Uploaded []string `json:"uploaded"`
	// Notes are the lines that the program remember was given.
	Notes []string `json:"notes,omitempty"`
	// Screen is there where the manifest asks for a display: as large as that, and bare.
	Screen *proto.Screen `json:"screen,omitempty"`
}

// world is a slot's inside.
type world struct {
	memory
	files map[string]file
}

// boot is a slot's inside right after its start.
func boot(hostname string, g bench.Guest) (*world, error) {
	w := &world{files: image()}
	program, ok := w.files[g.Server.Exec[0]]
	if !ok || program.Directory {
		return nil, fmt.Errorf("exec %s: no such program in the image", g.Server.Exec[0])
	}
	var screen *proto.Screen
	if d := g.Display; d != nil {
		screen = &proto.Screen{Width: int(d.Width), Height: int(d.Height), Depth: int(d.Depth), Windows: []proto.Window{}}
	}
	w.memory = memory{
		Screen:   screen,
		Hostname: hostname, Home: g.Home, Port: int(g.Server.Port), Server: digest(program.Data), Token: newToken(), Counter: 1,
		Network: bench.Network{
			Links:     []bench.Link{{Name: "lo", Type: "device", Up: true, Mtu: 65536, Mac: ""}},
			Addresses: []string{"lo 127.0.0.1/8 scope host", "lo ::1/128 scope host"},
			Routes:    []string{"local 127.0.0.0/8 dev lo table local proto kernel scope host src 127.0.0.1"},
			Rules:     []string{"inet 0: from all lookup local", "inet 32766: from all lookup main", "inet 32767: from all lookup default"},
		},
		Mounts: []bench.Mount{
			mount("/", "overlay", "lowerdir=/image", "upperdir=/upper", "workdir=/work"), mount("/dev", "tmpfs", "size=1024k"),
			mount("/dev/pts", "devpts", "gid=5"), mount("/proc", "proc"), mount("/sys", "sysfs"),
		},
		Services: []proto.ServiceState{}, Uploaded: []string{},
	}
	w.Processes = []bench.Process{process(1, 0, g.Server.Exec, "/")}
	for i, s := range g.Services {
		pid := int64(2 + i)
		w.Processes = append(w.Processes, process(pid, 1, s.Exec, g.Home))
		w.Services = append(w.Services, proto.ServiceState{Name: string(s.Name), Pid: int(pid), Alive: true, Ready: true})
		if s.Ready != "" {
			w.files[string(s.Ready)] = file{Mode: 0o644}
		}
	}
	// The last process started holds a lock of each kind that a restore treats differently.
	owner := w.Processes[len(w.Processes)-1].Pid
	for name, mapped := range map[string]bool{"/run/plain.lock": false, "/run/mapped.lock": true} {
		w.files[name] = file{Mode: 0o644}
		w.Locks = append(w.Locks, bench.Lock{Path: name, Pid: owner, Type: "POSIX", Mode: "READ", Start: "0", End: "-1", Mapped: mapped})
	}
	slices.SortFunc(w.Locks, func(a, b bench.Lock) int { return strings.Compare(a.Path, b.Path) })
	return w, nil
}

func mount(point, fstype string, super ...string) bench.Mount {
	return bench.Mount{Point: point, Root: "/", Fstype: fstype, Source: fstype, Options: []string{"rw"}, Super: append([]string{"rw"}, super...)}
}

func process(pid, parent int64, argv []string, cwd string) bench.Process {
	return bench.Process{Pid: pid, Parent: parent, Group: pid, Session: pid, Argv: slices.Clone(argv), Exe: argv[0], Cwd: cwd,
		Uids: []int64{0, 0, 0, 0}, Gids: []int64{0, 0, 0, 0}, Groups: []int64{}, Threads: 1}
}

func newToken() string {
	var b [16]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// layer is what differs from the image; a path that is gone is nil.
func (w *world) layer() map[string]*file {
	base, diff := image(), map[string]*file{}
	for p, f := range w.files {
		if b, ok := base[p]; !ok || !reflect.DeepEqual(b, f) {
			diff[p] = &f
		}
	}
	for p := range base {
		if _, ok := w.files[p]; !ok {
			diff[p] = nil
		}
	}
	return diff
}

// over returns the image's files under a layer.
func over(layer map[string]*file) map[string]file {
	files := image()
	for p, f := range layer {
		if f == nil {
			delete(files, p)
		} else {
			files[p] = *f
		}
	}
	return files
}

// state is the layer as a state manifest.
func (w *world) state(exclude []string) bench.StateManifest {
	m := bench.StateManifest{Entries: []bench.StateEntry{}, Exclude: exclude}
	layer := w.layer()
	for _, p := range slices.Sorted(maps.Keys(layer)) {
		if slices.ContainsFunc(exclude, func(x string) bool { return p == x || strings.HasPrefix(p, strings.TrimSuffix(x, "/")+"/") }) {
			continue
		}
		e := bench.StateEntry{Path: p}
		switch f := layer[p]; {
		case f == nil:
			e.Type = "whiteout"
		case f.Directory:
			e.Type, e.Mode = "directory", f.Mode
		default:
			e.Type, e.Mode, e.Size, e.Sha256 = "file", f.Mode, bench.Int64(strconv.Itoa(len(f.Data))), digest(f.Data)
		}
		m.Entries = append(m.Entries, e)
	}
	return m
}

// path is a guest's path made absolute.
func (w *world) path(p string) string {
	switch {
	case p == "~", strings.HasPrefix(p, "~/"):
		p = w.Home + p[1:]
	case !strings.HasPrefix(p, "/"):
		p = w.Home + "/" + p
	}
	return path.Clean(p)
}

// write makes or replaces a file; its folder must be there.
func (w *world) write(p string, data []byte, mode int64) error {
	if old, ok := w.files[p]; ok {
		if old.Directory {
			return fmt.Errorf("%s: is a directory", p)
		}
		mode = old.Mode
	} else if err := w.parent(p); err != nil {
		return err
	}
	w.files[p] = file{Mode: mode, Data: data}
	return nil
}

func (w *world) parent(p string) error {
	if d, ok := w.files[path.Dir(p)]; !ok || !d.Directory {
		return fmt.Errorf("%s: no such file or directory", p)
	}
	return nil
}

// below are the paths at and below p.
func (w *world) below(p string) []string {
	var out []string
	for q := range w.files {
		if q == p || strings.HasPrefix(q, p+"/") {
			out = append(out, q)
		}
	}
	return out
}
