package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/oci"
	"github.com/drumsbench/drumsbench/arms/qemu"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// planted is a host on which everything is as it should be, until a test plants a cause.
type planted struct {
	*Host
	files fstest.MapFS
	// absent are the programs that are not found.
	absent map[string]bool
	// versions of criu by path.
	versions map[string]string
	runs     []Run
}

func (p *planted) file(name, text string) {
	p.files[strings.TrimPrefix(name, "/")] = &fstest.MapFile{Data: []byte(text), Mode: 0o644}
}

func (p *planted) folder(name string) {
	p.files[strings.TrimPrefix(name, "/")] = &fstest.MapFile{Mode: fs.ModeDir | 0o755}
}

func (p *planted) remove(name string) { delete(p.files, strings.TrimPrefix(name, "/")) }

// edit replaces text that has to be there.
func (p *planted) edit(name, old, new string) {
	text := string(p.files[strings.TrimPrefix(name, "/")].Data)
	if !strings.Contains(text, old) {
		panic(name + " has no " + old)
	}
	p.file(name, strings.ReplaceAll(text, old, new))
}

// A file system on which some files cannot be looked at.
type closedFS struct {
	fs.FS
	closed string
}

func (c closedFS) Open(name string) (fs.File, error) {
	if "/"+name == c.closed {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return c.FS.Open(name)
}

func (p *planted) closed(name string) { p.FS = closedFS{p.FS, name} }

const (
	state   = "/var/lib/drums"
	boot    = "11111111-2222-3333-4444-555555555555"
	private = state + "/criu/4.2/bin/criu"
)

// hybrid mounts limits on v1, unified on v2.
const (
	rootMount = "20 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
	hybrid    = rootMount +
		"30 20 0:30 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n" +
		"31 30 0:31 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
		"32 30 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
		"33 30 0:33 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n" +
		"34 30 0:34 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
	unified = rootMount + "31 20 0:31 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
)

func goodHost() *planted {
	p := &planted{files: fstest.MapFS{}, absent: map[string]bool{"/criu": true}, versions: map[string]string{private: "4.2.1"}}
	p.file("/proc/self/status", "Name:\tdrumsbench\nUid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\nSeccomp:\t0\n")
	p.file("/proc/self/uid_map", "         0          0 4294967295\n")
	for _, kind := range []string{"mnt", "pid", "net", "ipc", "uts"} {
		p.file("/proc/self/ns/"+kind, "")
		p.file("/proc/sys/user/max_"+kind+"_namespaces", "96000\n")
	}
	p.file("/proc/sys/kernel/yama/ptrace_scope", "1\n")
	p.file("/proc/sys/kernel/osrelease", "6.18.44-test\n")
	p.file("/proc/sys/kernel/random/boot_id", boot+"\n")
	p.file("/proc/self/mountinfo", hybrid)
	p.file("/proc/self/cgroup", "9:name=systemd:/\n5:devices:/\n4:memory:/\n3:cpu,cpuacct:/\n2:pids:/\n0::/\n")
	for _, name := range []string{"cpu", "cpu,cpuacct", "memory", "pids", "unified"} {
		p.folder("/sys/fs/cgroup/" + name)
	}
	p.file("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes", "9223372036854771712\n")
	p.file("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
	p.file("/sys/kernel/mm/ksm/run", "0\n")
	p.file("/proc/swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n")
	p.file("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu vmx sse\n")
	p.file("/dev/net/tun", "")
	for _, name := range []string{"loop-control", "fuse", "kvm", "nbd0"} {
		p.file("/dev/"+name, "")
	}
	p.file(state+"/criu/current/closure.json", `{"criu": {"path": "`+private+`"}}`)
	p.folder(state + "/work")
	p.folder("/run/systemd/system")
	p.Host = &Host{
		FS: p.files, Env: []string{"PATH=/usr/bin:/bin", "HOME=/root"}, State: state, Machine: "x86_64",
		Probes: Probes{
			Tool: func(context.Context) (criu.Tool, error) {
				return criu.Tool{Path: private, Version: "4.2.1", Origin: "closure"}, nil
			},
			Systemd: func(context.Context) (string, error) { return "252", nil },
			Runc: func(context.Context) (oci.Tool, error) {
				return oci.Tool{Path: "/usr/sbin/runc", Version: "1.1.5", Origin: "system"}, nil
			},
			QEMU: func(context.Context) (qemu.Tool, error) {
				return qemu.Tool{Path: "/usr/bin/qemu-system-x86_64", Version: "7.2.22"}, nil
			},
			Accelerator: func(_ context.Context, _ qemu.Tool, accel string) engine.Reading[string] {
				return engine.Known(accel, "test", engine.ViewHost)
			},
			Kernel: func(context.Context, qemu.Tool, string) (bool, error) { return true, nil },
			Tun:    func() error { return nil },
			Check:  func(context.Context, criu.Tool) error { return nil },
			Version: func(_ context.Context, path string) (string, error) {
				if v, ok := p.versions[path]; ok {
					return v, nil
				}
				return "", errors.New("it does not start")
			},
			Find: func(name string, dirs []string) (string, error) {
				if p.absent["/"+name] {
					return "", fs.ErrNotExist
				}
				return path.Join(dirs[0], name), nil
			},
			Group:         func(context.Context, string) error { return nil },
			PrivateGroups: func(context.Context, string) error { return nil },
			Overlay:       func(string) error { return nil },
			Loop:          func(string) error { return nil },
			Fuse:          func(string) error { return nil },
			KVM:           func() (KVM, error) { return KVM{API: 12, VM: true, VCPU: true}, nil },
			Write:         func(string) error { return nil },
			Space:         func(string) (Space, error) { return Space{Bytes: 50 << 30, Files: 1 << 20}, nil },
			Runs:          func(string) ([]Run, error) { return p.runs, nil },
		},
	}
	return p
}

func diagnose(t *testing.T, p *planted, kind string) bench.ArmHealth {
	t.Helper()
	health, err := Diagnose(context.Background(), p.Host, kind)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(bench.HostFacts{ApiVersion: engine.APIVersion, Facts: []bench.Fact{}, Arms: []bench.ArmHealth{health}})
	if err != nil {
		t.Fatal(err)
	}
	if err := compile.Validate("HostFacts", data); err != nil {
		t.Errorf("it is not what the schema says: %v\n%s", err, data)
	}
	for _, f := range health.Findings {
		if (f.Severity == OK) != (f.Remedy == "") || f.Text == "" {
			t.Errorf("a finding without a remedy or an ok with one: %+v", f)
		}
	}
	return health
}

// bad are the findings that are not ok, one line each.
func bad(health bench.ArmHealth) (lines []string) {
	for _, f := range health.Findings {
		if f.Severity != OK {
			lines = append(lines, fmt.Sprintf("%s %s: %s -> %s", f.Severity, f.Subject, f.Text, f.Remedy))
		}
	}
	return lines
}

func TestNothingIsWrongWithAGoodHost(t *testing.T) {
	for _, kind := range Kinds() {
		p := goodHost()
		if kind == oci.Kind { // v1 beside v2 leaves it one of its two cgroup drivers
			onV2(p)
		}
		health := diagnose(t, p, kind)
		if lines := bad(health); lines != nil || health.Verdict != OK {
			t.Errorf("%s: %s %q", kind, health.Verdict, lines)
		}
		if len(health.Findings) != len(checks[kind])+map[string]int{"drums": 1, "oci": 1}[kind] { // criu says two things
			t.Errorf("%s: %d findings of %d checks", kind, len(health.Findings), len(checks[kind]))
		}
	}
}

func withoutCapability(bit uint) func(p *planted) {
	return func(p *planted) {
		p.edit("/proc/self/status", "000001ffffffffff", fmt.Sprintf("%016x", uint64(0x1ffffffffff)&^(1<<bit)))
	}
}

// onV2 makes the host a unified one with our group below the root.
func onV2(p *planted) {
	p.file("/proc/self/mountinfo", unified)
	p.file("/proc/self/cgroup", "0::/user.slice/ours\n")
	p.file("/sys/fs/cgroup/user.slice/ours/cgroup.controllers", "cpu io memory pids\n")
	p.file("/sys/fs/cgroup/user.slice/ours/cgroup.type", "domain\n")
	p.file("/sys/fs/cgroup/user.slice/ours/cgroup.procs", "4242\n4243\n4244\n") // we, a child of ours, one that ended meanwhile
	p.file("/proc/self/stat", "4242 (drums) S 1 4242 4242 0\n")
	p.file("/proc/4243/stat", "4243 (a) b) S 4242 4242 4242 0\n")
}

// causes are all that a check can find, each planted alone: exactly the findings
// that are listed follow, and the verdict.
var causes = []struct {
	name  string
	plant func(p *planted)
	// want begins each finding that is not ok: "severity subject: text".
	want []string
	// remedy is a part of the first one's.
	remedy  string
	verdict string
}{
	// Who we are.
	{"another user", func(p *planted) { p.edit("/proc/self/status", "Uid:\t0\t0", "Uid:\t1000\t1000") }, []string{
		"lack root: this runs as uid 1000", "unknown criu: only root", "unknown cgroup2: only root", "unknown overlayfs: only root",
		"unknown loop: only root", "unknown fuse: only root", "unknown kvm: only root",
	}, "as root", Lack},
	{"root of a user namespace", func(p *planted) { p.file("/proc/self/uid_map", "0 100000 65536\n") }, []string{"lack root: this root is one of a user namespace"}, "host's own root", Lack},
	{"no user namespaces", func(p *planted) { p.remove("/proc/self/uid_map") }, nil, "", OK},
	{"uid map closed", func(p *planted) { p.closed("/proc/self/uid_map") }, []string{"unknown root: cannot be learnt"}, "", Unknown},
	{"no status", func(p *planted) { p.remove("/proc/self/status") }, []string{
		"unknown root: cannot be learnt", "unknown capabilities: cannot be learnt", "unknown criu", "unknown cgroup2", "unknown overlayfs", "unknown loop", "unknown fuse", "unknown kvm",
	}, "mount /proc", Unknown},
	{"status without uid", func(p *planted) { p.edit("/proc/self/status", "Uid:", "uid:") }, []string{"unknown root", "unknown criu", "unknown cgroup2", "unknown overlayfs", "unknown loop", "unknown fuse", "unknown kvm"}, "", Unknown},
	{"status cut", func(p *planted) { p.edit("/proc/self/status", "Uid:\t0\t0\t0\t0", "Uid:\t0") }, []string{"unknown root", "unknown criu", "unknown cgroup2", "unknown overlayfs", "unknown loop", "unknown fuse", "unknown kvm"}, "", Unknown},
	{"capabilities illegible", func(p *planted) { p.edit("/proc/self/status", "000001ffffffffff", "all") }, []string{"unknown capabilities: cannot be learnt"}, "", Unknown},
	{"no cap-sys-resource", withoutCapability(24), []string{"warn cap-sys-resource: CAP_SYS_RESOURCE is missing: processes of another uid than root cannot be dumped"}, "run every process of the guest as root", OK},
	{"no cap-checkpoint-restore", withoutCapability(40), []string{"warn cap-checkpoint-restore: CAP_CHECKPOINT_RESTORE is missing: criu needs CAP_SYS_ADMIN in its place"}, "--cap-add", OK},
	{"no namespaces", func(p *planted) { p.remove("/proc/self/ns/ipc") }, []string{"lack namespaces: the kernel has no ipc namespaces"}, "CONFIG_NAMESPACES", Lack},
	{"namespaces forbidden", func(p *planted) { p.file("/proc/sys/user/max_net_namespaces", "0\n") }, []string{"lack namespaces: /proc/sys/user/max_net_namespaces is 0"}, "sysctl -w user.max_net_namespaces", Lack},
	{"namespaces unbounded", func(p *planted) { p.remove("/proc/sys/user/max_pid_namespaces") }, nil, "", OK},
	{"namespaces closed", func(p *planted) { p.closed("/proc/self/ns/pid") }, []string{"unknown namespaces"}, "", Unknown},
	{"namespace bound closed", func(p *planted) { p.closed("/proc/sys/user/max_pid_namespaces") }, []string{"unknown namespaces"}, "", Unknown},
	{"nobody may trace", func(p *planted) { p.file("/proc/sys/kernel/yama/ptrace_scope", "3\n") }, []string{"lack confinement: kernel.yama.ptrace_scope is 3"}, "boot with", Lack},
	{"no yama", func(p *planted) { p.remove("/proc/sys/kernel/yama/ptrace_scope") }, nil, "", OK},
	{"yama closed", func(p *planted) { p.closed("/proc/sys/kernel/yama/ptrace_scope") }, []string{"unknown confinement"}, "", Unknown},
	{"seccomp", func(p *planted) { p.edit("/proc/self/status", "Seccomp:\t0", "Seccomp:\t2") }, []string{"warn confinement: a seccomp filter is in force"}, "seccomp=unconfined", OK},

	// What changes tools in silence (case 29).
	{"criu's configuration of the host", func(p *planted) { p.file("/etc/criu/default.conf", "leave-stopped\n") }, []string{"lack tool-config: /etc/criu/default.conf changes what criu does"}, "move it away", Lack},
	{"runc's configuration of criu", func(p *planted) { p.file("/etc/criu/runc.conf", "") }, []string{"lack tool-config: /etc/criu/runc.conf changes"}, "", Lack},
	{"criu's configuration of the user", func(p *planted) { p.file("/root/.criu/default.conf", "") }, []string{"lack tool-config: /root/.criu/default.conf changes"}, "", Lack},
	{"criu's variable", func(p *planted) { p.Env = append(p.Env, "CRIU_CONFIG_FILE=/x.conf") }, []string{"lack tool-config: CRIU_CONFIG_FILE=/x.conf changes"}, "unset CRIU_CONFIG_FILE:", Lack},
	{"an experiment of CUE", func(p *planted) { p.Env = append(p.Env, "CUE_EXPERIMENT=evalv3=0") }, []string{"lack cue-config: CUE_EXPERIMENT is set"}, "unset CUE_EXPERIMENT", Lack},
	{"debugging of CUE", func(p *planted) { p.Env = append(p.Env, "CUE_DEBUG=strict") }, []string{"lack cue-config: CUE_DEBUG is set"}, "unset CUE_DEBUG", Lack},
	{"a registry of CUE", func(p *planted) { p.Env = append(p.Env, "CUE_REGISTRY=example.com", "CUE_EXPERIMENT=") }, []string{"warn cue-config: CUE_REGISTRY is set: stock cue heeds it"}, "unset CUE_REGISTRY", OK},

	// Programs.
	{"no ip", func(p *planted) { p.absent["/ip"] = true }, []string{"lack tools: there is no ip in /usr/sbin:/usr/bin:/sbin:/bin: criu cannot dump"}, "apt-get install iproute2", Lack},
	{"no tar, no gzip", func(p *planted) { p.absent["/tar"], p.absent["/gzip"] = true, true }, []string{"lack tools: there is no tar, gzip in"}, "apt-get install tar gzip", Lack},
	{"no qemu-img", func(p *planted) { p.absent["/qemu-img"] = true }, []string{"lack tools: there is no qemu-img in"}, "apt-get install qemu-utils", Lack},
	{"no qemu-storage-daemon", func(p *planted) { p.absent["/qemu-storage-daemon"] = true }, []string{`warn tools-fuse: there is no qemu-storage-daemon`}, "qemu-system-common", OK},
	{"no qemu-nbd", func(p *planted) { p.absent["/qemu-nbd"] = true }, []string{`warn nbd: there are nbd devices and no qemu-nbd`}, "qemu-utils", OK},
	{"nothing to build images", func(p *planted) {
		p.absent["/mke2fs"], p.absent["/debugfs"], p.absent["/mmdebstrap"] = true, true, true
	}, []string{"warn tools-image: there is no mmdebstrap, mke2fs, debugfs in"}, "apt-get install mmdebstrap e2fsprogs", OK},
	{"programs cannot be looked for", func(p *planted) {
		was := p.Find
		p.Find = func(name string, dirs []string) (string, error) {
			if name == "ip" || name == "mke2fs" {
				return "", fs.ErrPermission
			}
			return was(name, dirs)
		}
	}, []string{"unknown tools: cannot be learnt", "warn tools-image: cannot be learnt"}, "", Unknown},

	// CRIU, and CRIU against the kernel (cases 9 and 10).
	{"no criu", func(p *planted) {
		p.remove(state + "/criu/current/closure.json")
		p.Tool = func(context.Context) (criu.Tool, error) {
			return criu.Tool{}, &engine.Error{Op: "find criu", Err: fmt.Errorf("%w: no such file", engine.ErrRefused), Hint: "run scripts/setup now"}
		}
	}, []string{"lack criu: find criu: refused: no such file"}, "run scripts/setup now", Lack},
	{"criu cannot be asked", func(p *planted) {
		p.Tool = func(context.Context) (criu.Tool, error) { return criu.Tool{}, errors.New("i/o error") }
	}, []string{"unknown criu: cannot be asked: i/o error"}, "scripts/setup", Unknown},
	{"criu check", func(p *planted) {
		p.Check = func(context.Context, criu.Tool) error { return errors.New("kernel lacks everything") }
	}, []string{"lack criu-check: criu cannot work on this kernel: kernel lacks everything"}, "CONFIG_CHECKPOINT_RESTORE", Lack},
	{"case 10: an operator's criu 3.17.1 on kernel 6.18", func(p *planted) {
		p.file(state+"/criu/operator.json", `{"path": "/usr/sbin/criu"}`)
		p.versions["/usr/sbin/criu"] = "3.17.1"
		p.Tool = func(context.Context) (criu.Tool, error) {
			return criu.Tool{}, &engine.Error{Op: "check criu", Err: fmt.Errorf("%w: criu ended", engine.ErrRefused), Hint: "set up"}
		}
	}, []string{
		"lack criu: check criu: refused: criu ended",
		"lack criu-kernel: criu 3.17.1 at /usr/sbin/criu does not go with kernel 6.18.44-test: it stops while it looks at the vDSO, whose data pages the kernel splits since 6.13 (checkpoint-restore/criu issue 2532); it cannot dump a TCP socket",
	}, "set up", Lack},
	{"case 9: criu 4.1.1 on kernel 6.16", func(p *planted) {
		p.file("/proc/sys/kernel/osrelease", "6.16-rc1\n")
		p.versions[private] = "4.1.1"
	}, []string{"lack criu-kernel: criu 4.1.1 at " + private + " does not go with kernel 6.16-rc1: it cannot dump a TCP socket, of which the kernel refuses SO_PASSCRED since 6.16 (checkpoint-restore/criu issue 2705)"}, "criu 4.2 or newer", Lack},
	{"the system's old criu is not ours", func(p *planted) {
		delete(p.absent, "/criu")
		p.versions["/usr/bin/criu"] = "3.17.1"
	}, []string{"warn criu-kernel: criu 3.17.1 at /usr/bin/criu, which this arm does not use, does not go with kernel"}, "nothing for this arm", OK},
	{"the system's criu is new", func(p *planted) {
		delete(p.absent, "/criu")
		p.versions["/usr/bin/criu"] = "4.3"
	}, nil, "", OK},
	{"the system's criu does not start", func(p *planted) { delete(p.absent, "/criu") }, []string{"warn criu-kernel: /usr/bin/criu, which this arm does not use, cannot be judged: it does not start"}, "nothing for this arm", OK},
	{"a criu of no version", func(p *planted) { p.versions[private] = "of yesterday" }, []string{"unknown criu-kernel: " + private + " cannot be judged: criu version"}, "DRUMSBENCH_CRIU", Unknown},
	{"a kernel of no version", func(p *planted) { p.file("/proc/sys/kernel/osrelease", "new.est") }, []string{"unknown criu-kernel: " + private + " cannot be judged: kernel release"}, "", Unknown},
	{"kernel release closed", func(p *planted) { p.closed("/proc/sys/kernel/osrelease") }, []string{"unknown criu-kernel: cannot be learnt"}, "", Unknown},
	{"the record of criu is damaged", func(p *planted) { p.file(state+"/criu/operator.json", "{") }, nil, "", OK}, // the tool itself says so

	// Cgroups.
	{"no cgroups", func(p *planted) { p.file("/proc/self/mountinfo", rootMount) }, []string{"lack cgroups: no cgroup hierarchy is mounted", "warn cgroup2: no cgroup2 mount"}, "mount -t cgroup2", Lack},
	{"no memory controller", func(p *planted) {
		p.edit("/proc/self/mountinfo", "32 30 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n", "")
	}, []string{"lack cgroup-memory: no mounted v1 hierarchy shows our own group under the memory controller"}, "mount -t cgroup -o memory", Lack},
	{"our group is outside of the mount", func(p *planted) { p.edit("/proc/self/mountinfo", "0:33 / ", "0:33 /other ") }, []string{"lack cgroup-pids: no mounted v1 hierarchy shows our own group under the pids controller"}, "", Lack},
	{"controllers read-only", func(p *planted) {
		p.edit("/proc/self/mountinfo", "/sys/fs/cgroup/pids rw - cgroup cgroup rw", "/sys/fs/cgroup/pids ro - cgroup cgroup rw")
	}, []string{"lack cgroup-pids: /sys/fs/cgroup/pids is mounted read-only"}, "remount,rw", Lack},
	{"no link beside a joint mount", func(p *planted) { p.remove("/sys/fs/cgroup/cpu") }, []string{"lack cgroup-cpu: /sys/fs/cgroup/cpu,cpuacct is not reachable as /sys/fs/cgroup/cpu"}, "ln -s cpu,cpuacct /sys/fs/cgroup/cpu", Lack},
	{"joint mount closed", func(p *planted) { p.closed("/sys/fs/cgroup/cpu") }, []string{"unknown cgroup-cpu"}, "", Unknown},
	{"no swap accounting", func(p *planted) { p.remove("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes") }, []string{"lack cgroup-memory: the kernel accounts no swap"}, "swapaccount=1", Lack},
	{"swap accounting closed", func(p *planted) { p.closed("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes") }, []string{"unknown cgroup-memory"}, "", Unknown},
	{"legacy: no cgroup2 mount", func(p *planted) {
		p.edit("/proc/self/mountinfo", "34 30 0:34 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n", "")
	}, []string{"warn cgroup2: no cgroup2 mount shows our own group: each run mounts a private one"}, "mount -t cgroup2", OK},
	{"legacy: and no private one", func(p *planted) {
		p.edit("/proc/self/mountinfo", "34 30 0:34 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n", "")
		p.PrivateGroups = func(_ context.Context, group string) error { return errors.New("no v2 at " + group) }
	}, []string{"lack cgroup2: no cgroup2 mount shows our own group, and a private one does not work: no v2 at /"}, "5.14", Lack},
	{"no cgroup.kill", func(p *planted) {
		p.Group = func(_ context.Context, dir string) error { return errors.New("no cgroup.kill in " + dir) }
	}, []string{"lack cgroup2: a group below /sys/fs/cgroup/unified does not do what a run needs: no cgroup.kill in /sys/fs/cgroup/unified"}, "5.14", Lack},
	{"unified", onV2, nil, "", OK},
	{"unified beside a shell", func(p *planted) {
		onV2(p)
		p.file("/sys/fs/cgroup/user.slice/ours/cgroup.procs", "4100\n4242\n")
		p.file("/proc/4100/stat", "4100 (bash) S 1 4100 4100 0\n")
	}, []string{"lack cgroups: /sys/fs/cgroup/user.slice/ours also holds process 4100"}, "Delegate=yes", Lack},
	{"unified beside a process of another pid namespace", func(p *planted) {
		onV2(p)
		p.file("/sys/fs/cgroup/user.slice/ours/cgroup.procs", "0\n4242\n")
	}, []string{"lack cgroups: /sys/fs/cgroup/user.slice/ours also holds process 0"}, "Delegate=yes", Lack},
	{"unified, who is here is closed", func(p *planted) { onV2(p); p.closed("/sys/fs/cgroup/user.slice/ours/cgroup.procs") }, []string{"unknown cgroups"}, "", Unknown},
	{"unified, a group for ours", func(p *planted) {
		onV2(p)
		p.file("/sys/fs/cgroup/user.slice/ours/cgroup.procs", "4100\n4242\n")
		p.file("/proc/4100/stat", "4100 (bash) S 1 4100 4100 0\n")
		p.folder("/sys/fs/cgroup/home.service")
		for name, text := range map[string]string{"controllers": "cpu memory pids", "type": "domain", "procs": ""} {
			p.file("/sys/fs/cgroup/home.service/cgroup."+name, text+"\n")
		}
		p.Env = append(p.Env, cgroup.Variable+"=/sys/fs/cgroup/home.service")
	}, nil, "", OK},
	{"unified, no such group for ours", func(p *planted) {
		onV2(p)
		p.Env = append(p.Env, cgroup.Variable+"=/sys/fs/cgroup/home.service")
	}, []string{"unknown cgroups", "unknown cgroup2", "warn strays"}, "", Unknown},
	{"unified without memory", func(p *planted) {
		onV2(p)
		p.file("/sys/fs/cgroup/user.slice/ours/cgroup.controllers", "cpu pids\n")
	}, []string{"lack cgroup-memory: /sys/fs/cgroup/user.slice/ours is not given memory by the group above it"}, "Delegate=yes", Lack},
	{"unified of others", func(p *planted) { onV2(p); p.edit("/proc/self/mountinfo", "0:31 / ", "0:31 /other ") }, []string{"lack cgroups: no cgroup2 mount shows our own group /user.slice/ours", "warn cgroup2"}, "cgroup namespace", Lack},
	{"unified closed", func(p *planted) { onV2(p); p.closed("/sys/fs/cgroup/user.slice/ours/cgroup.controllers") }, []string{"unknown cgroups"}, "", Unknown},
	{"mounts closed", func(p *planted) { p.closed("/proc/self/mountinfo") }, []string{"unknown cgroups", "unknown cgroup2", "unknown state", "warn strays"}, "", Unknown},
	{"own group closed", func(p *planted) { p.closed("/proc/self/cgroup") }, []string{"unknown cgroups", "unknown cgroup2", "warn strays"}, "", Unknown},
	{"own group illegible", func(p *planted) { p.file("/proc/self/cgroup", "nonsense\n") }, []string{"unknown cgroups", "unknown cgroup2", "warn strays"}, "", Unknown},

	// The state directory.
	{"no state directory yet", func(p *planted) {
		for name := range p.files {
			if strings.HasPrefix(name, state[1:]) {
				delete(p.files, name)
			}
		}
		p.folder("/var/lib")
		p.Write = func(dir string) error {
			if dir != "/var/lib" {
				return errors.New("it was looked for in " + dir)
			}
			return nil
		}
	}, nil, "", OK},
	{"state not writable", func(p *planted) { p.Write = func(string) error { return errors.New("read-only file system") } }, []string{"lack state: nothing can be written in " + state + ": read-only file system"}, "--state", Lack},
	{"state closed", func(p *planted) { p.closed(state) }, []string{"unknown state", "unknown space", "unknown overlayfs", "unknown loop", "warn fuse"}, "", Unknown},
	{"state on noexec", func(p *planted) {
		p.edit("/proc/self/mountinfo", hybrid, hybrid+"50 20 8:2 / "+state+" rw,noexec - ext4 /dev/sdb rw\n")
	}, []string{"lack state: " + state + " is on a mount that executes nothing"}, "remount,exec " + state, Lack},
	{"state on nodev", func(p *planted) {
		p.edit("/proc/self/mountinfo", hybrid, hybrid+"50 20 8:2 / /var rw,nodev - ext4 /dev/sdb rw\n")
	}, []string{"warn state: " + state + " is on a mount without device nodes"}, "remount,dev /var", OK},
	{"no space", func(p *planted) {
		p.Space = func(string) (Space, error) { return Space{Bytes: 100 << 20, Files: 1 << 20}, nil }
	}, []string{"lack space: 100MiB are free"}, "make room", Lack},
	{"little space", func(p *planted) {
		p.Space = func(string) (Space, error) { return Space{Bytes: 2 << 30, Files: 1 << 20}, nil }
	}, []string{"warn space: 2GiB are free"}, "make room", OK},
	{"no inodes", func(p *planted) {
		p.Space = func(string) (Space, error) { return Space{Bytes: 50 << 30, Files: 7}, nil }
	}, []string{"lack space: the file system of " + state + " can hold 7 more files"}, "make room", Lack},
	{"inodes without bound", func(p *planted) {
		p.Space = func(string) (Space, error) { return Space{Bytes: 50 << 30, Unlimited: true}, nil }
	}, nil, "", OK},
	{"space not known", func(p *planted) { p.Space = func(string) (Space, error) { return Space{}, errors.New("statfs fails") } }, []string{"unknown space: cannot be learnt: statfs fails"}, "", Unknown},
	{"no overlayfs", func(p *planted) { p.Overlay = func(string) error { return errors.New("no such device") } }, []string{"lack overlayfs: an overlay as a slot has it does not work: no such device"}, "modprobe overlay", Lack},
	{"state on an overlay", func(p *planted) {
		p.edit("/proc/self/mountinfo", hybrid, strings.Replace(hybrid, "ext4", "overlay", 1))
		p.Overlay = func(string) error { return errors.New("invalid argument") }
	}, []string{"lack overlayfs: an overlay as a slot has it does not work: invalid argument; the state directory is on overlay"}, "put the state directory on ext4", Lack},

	// Devices.
	{"no loop devices", func(p *planted) { p.remove("/dev/loop-control") }, []string{"lack loop: there is no /dev/loop-control: no image can be mounted"}, "modprobe loop", Lack},
	{"loop devices refused", func(p *planted) { p.Loop = func(string) error { return errors.New("not permitted") } }, []string{"lack loop: /dev/loop-control is there and does not work: not permitted"}, "give a container", Lack},
	{"loop closed", func(p *planted) { p.closed("/dev/loop-control") }, []string{"unknown loop"}, "", Unknown},
	{"no fuse", func(p *planted) { p.remove("/dev/fuse") }, []string{"warn fuse: there is no /dev/fuse"}, "modprobe fuse", OK},
	{"fuse refused", func(p *planted) { p.Fuse = func(string) error { return errors.New("not permitted") } }, []string{"warn fuse: /dev/fuse is there and does not work"}, "", OK},
	{"fuse closed", func(p *planted) { p.closed("/dev/fuse") }, []string{"warn fuse: cannot be learnt"}, "", OK},
	{"no nbd", func(p *planted) { p.remove("/dev/nbd0") }, []string{"warn nbd: there is no /dev/nbd0"}, "modprobe nbd", OK},
	{"nbd closed", func(p *planted) { p.closed("/dev/nbd0") }, []string{"warn nbd: cannot be learnt"}, "", OK},
	{"no kvm", func(p *planted) { p.KVM = func() (KVM, error) { return KVM{}, fmt.Errorf("open: %w", fs.ErrNotExist) } }, []string{"warn kvm: there is no /dev/kvm"}, "nothing for this arm", OK},
	{"kvm closed", func(p *planted) { p.KVM = func() (KVM, error) { return KVM{}, fs.ErrPermission } }, []string{"warn kvm: /dev/kvm is there and cannot be opened"}, "", OK},
	{"kvm of another version", func(p *planted) { p.KVM = func() (KVM, error) { return KVM{API: 11}, nil } }, []string{"warn kvm: /dev/kvm is there and is of API version 11"}, "", OK},
	{"kvm makes nothing", func(p *planted) {
		p.KVM = func() (KVM, error) { return KVM{API: 12, Err: errors.New("KVM_CREATE_VM: busy")}, nil }
	}, []string{"warn kvm: /dev/kvm answers and makes no machine with a processor: KVM_CREATE_VM: busy"}, "", OK},
	{"kvm makes no processor", func(p *planted) {
		p.KVM = func() (KVM, error) { return KVM{API: 12, VM: true, Err: errors.New("no memory")}, nil }
	}, []string{"warn kvm: /dev/kvm answers and makes no machine with a processor: no memory"}, "", OK},
	{"kvm is software", func(p *planted) { p.folder("/sys/module/kvm_pvm") }, []string{"warn kvm: /dev/kvm makes a machine, and it is software: the module is kvm_pvm"}, "", OK},
	{"the processor does not virtualise", func(p *planted) { p.file("/proc/cpuinfo", "flags\t: fpu sse\n") }, []string{"warn kvm: /dev/kvm makes a machine, and it is software: the processor has neither vmx nor svm"}, "", OK},
	{"another processor", func(p *planted) { p.Machine = "aarch64"; p.file("/proc/cpuinfo", "Features\t: fp\n") }, nil, "", OK},
	{"cpuinfo without flags", func(p *planted) { p.file("/proc/cpuinfo", "processor: 0\n") }, []string{"warn kvm: cannot be learnt"}, "", OK},
	{"cpuinfo closed", func(p *planted) { p.closed("/proc/cpuinfo") }, []string{"warn kvm: cannot be learnt"}, "", OK},
	{"modules closed", func(p *planted) { p.folder("/sys/module/kvm_pvm"); p.closed("/sys/module/kvm_pvm") }, []string{"warn kvm: cannot be learnt"}, "", OK},

	// Memory.
	{"huge pages for all", func(p *planted) { p.file("/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n") }, []string{"warn hugepages: transparent huge pages are on for all memory"}, "echo madvise", OK},
	{"no huge pages", func(p *planted) { p.remove("/sys/kernel/mm/transparent_hugepage/enabled") }, nil, "", OK},
	{"huge pages closed", func(p *planted) { p.closed("/sys/kernel/mm/transparent_hugepage/enabled") }, []string{"warn hugepages: cannot be learnt"}, "", OK},
	{"ksm", func(p *planted) { p.file("/sys/kernel/mm/ksm/run", "1\n") }, []string{"warn ksm: equal pages are being merged"}, "echo 2", OK},
	{"no ksm", func(p *planted) { p.remove("/sys/kernel/mm/ksm/run") }, nil, "", OK},
	{"ksm closed", func(p *planted) { p.closed("/sys/kernel/mm/ksm/run") }, []string{"warn ksm: cannot be learnt"}, "", OK},
	{"swap", func(p *planted) {
		p.file("/proc/swaps", "Filename Type\n/dev/sdb2 partition 100 0 -2\n/swap file 100 0 -3\n")
	}, []string{"warn swap: swap is on (/dev/sdb2, /swap)"}, "swapoff -a", OK},
	{"no swap in the kernel", func(p *planted) { p.remove("/proc/swaps") }, nil, "", OK},
	{"swap closed", func(p *planted) { p.closed("/proc/swaps") }, []string{"warn swap: cannot be learnt"}, "", OK},

	// What earlier runs left.
	{"leftovers", func(p *planted) {
		p.runs = []Run{{Dir: "/r/sound"}, {Dir: "/r/dead", Owned: []record.Owned{{Kind: "mount", Boot: boot}, {Kind: "process", Boot: boot}, {Kind: "mount", Boot: boot}}}}
	}, []string{"warn leftovers: /r/dead still owns 2 mount, 1 process and has no engine"}, "drumsbench sweep /r/dead", OK},
	{"leftovers of an earlier boot", func(p *planted) {
		p.runs = []Run{{Dir: "/r", Owned: []record.Owned{{Kind: "directory", Boot: "earlier"}}}}
	}, []string{"warn leftovers: /r still owns 1 directory and has no engine, of an earlier boot: only files"}, "drumsbench sweep", OK},
	{"a run that goes on", func(p *planted) {
		p.runs = []Run{{Dir: "/r", Running: true, Owned: []record.Owned{{Kind: "mount", Boot: boot}}}}
	}, nil, "", OK},
	{"a damaged ledger", func(p *planted) { p.runs = []Run{{Dir: "/r", Err: errors.New("line 3")}} }, []string{"warn leftovers: the ledger of /r cannot be read, so what it left is not known: line 3"}, "drumsbench verify /r", OK},
	{"many leftovers", func(p *planted) {
		for i := range mostListed + 3 {
			p.runs = append(p.runs, Run{Dir: fmt.Sprint("/r/", i), Owned: []record.Owned{{Kind: "file", Boot: boot}}})
		}
	}, append(slices.Repeat([]string{"warn leftovers: /r/"}, mostListed), "warn leftovers: and 3 more"), "", OK},
	{"runs closed", func(p *planted) { p.Runs = func(string) ([]Run, error) { return nil, fs.ErrPermission } }, []string{"warn leftovers: cannot be learnt", "warn strays: cannot be learnt"}, "", OK},
	{"boot id closed", func(p *planted) { p.closed("/proc/sys/kernel/random/boot_id") }, []string{"warn leftovers: cannot be learnt"}, "", OK},
	{"strays of one run", func(p *planted) {
		p.folder("/sys/fs/cgroup/pids/drums-0123456789ab-slot-0-1")
		p.folder("/sys/fs/cgroup/unified/drums-0123456789ab")
		p.folder(state + "/work/0123456789ab")
		p.edit("/proc/self/mountinfo", hybrid, hybrid+"60 20 0:60 / "+state+"/work/0123456789ab/image rw - ext4 /dev/loop7 ro\n")
	}, []string{"warn strays: no ledger below " + state + " knows run 0123456789ab: /sys/fs/cgroup/pids/drums-0123456789ab-slot-0-1, /sys/fs/cgroup/unified/drums-0123456789ab, " +
		state + "/work/0123456789ab/image, " + state + "/work/0123456789ab"}, "drumsbench sweep its directory", OK},
	{"a stray of nobody", func(p *planted) { p.folder("/sys/fs/cgroup/unified/drums-of-mine") }, []string{"warn strays: no ledger below " + state + " knows drums-of-mine: /sys/fs/cgroup/unified/drums-of-mine"}, "by hand", OK},
	{"what a ledger knows is no stray", func(p *planted) {
		p.folder("/sys/fs/cgroup/unified/drums-0123456789ab")
		p.folder(state + "/work/0123456789ab")
		p.runs = []Run{{Dir: "/r", Running: true, Claimed: []string{"/sys/fs/cgroup/unified/drums-0123456789ab", state + "/work/0123456789ab"}}}
	}, nil, "", OK},
	{"others' things are no strays", func(p *planted) {
		p.folder("/sys/fs/cgroup/unified/system.slice")
		p.folder(path.Join(state, "work", "build-tree"))
		p.file(state+"/work/0123456789ab", "a file")
	}, nil, "", OK},
	{"scratch closed", func(p *planted) { p.closed(state + "/work") }, []string{"warn strays: cannot be learnt"}, "", OK},
}

func TestEachCauseIsFound(t *testing.T) {
	for _, c := range causes {
		t.Run(c.name, func(t *testing.T) {
			p := goodHost()
			c.plant(p)
			health := diagnose(t, p, "drums")
			lines := bad(health)
			if len(lines) != len(c.want) || health.Verdict != c.verdict {
				t.Fatalf("verdict %s, want %s; have\n%s", health.Verdict, c.verdict, strings.Join(lines, "\n"))
			}
			for i, want := range c.want {
				if !strings.HasPrefix(lines[i], want) {
					t.Errorf("have %s\nwant %s", lines[i], want)
				}
			}
			if len(lines) > 0 {
				if _, remedy, _ := strings.Cut(lines[0], " -> "); !strings.Contains(remedy, c.remedy) {
					t.Errorf("remedy %q, want …%s…", remedy, c.remedy)
				}
			}
		})
	}
}

func TestEachCapabilityThatIsNeeded(t *testing.T) {
	for _, c := range needed {
		p := goodHost()
		withoutCapability(c.bit)(p)
		health := diagnose(t, p, "drums")
		lines := bad(health)
		if len(lines) != 1 || health.Verdict != Lack || !strings.HasPrefix(lines[0], "lack "+subjectOf(c.name)+": "+c.name+" is missing: ") {
			t.Errorf("%s: %s %q", c.name, health.Verdict, lines)
		}
	}
}

func TestUnfit(t *testing.T) {
	for _, c := range []struct {
		kernel, machine, criu string
		want                  int
	}{
		{"6.18.44-fc-v669", "x86_64", "3.17.1", 2},
		{"6.18.44-fc-v669", "aarch64", "3.17.1", 1},
		{"6.18.44", "x86_64", "4.1.1", 1},
		{"6.18.44", "x86_64", "4.2.1-gdeadbeef", 0},
		{"6.18.44", "x86_64", "4.3", 0},
		{"6.16-rc1", "x86_64", "4.1", 1},
		{"6.13.0", "x86_64", "4.0", 1},
		{"6.12.9", "x86_64", "3.17.1", 0},
		{"6.1.0-13-amd64", "x86_64", "3.17.1", 0},
		{"7.0.1", "x86_64", "4.1", 1},
	} {
		if have, err := unfit(c.kernel, c.machine, c.criu); err != nil || len(have) != c.want {
			t.Errorf("%+v: %v %v", c, have, err)
		}
	}
	for _, wrong := range []string{"", "six", "6", "6.x", "a.b"} {
		if have, err := unfit(wrong, "x86_64", "4.2"); err == nil {
			t.Errorf("kernel %q was judged: %v", wrong, have)
		}
	}
}

// An end of the context is an error, never a verdict.
func TestInterruptedDiagnosis(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	p := goodHost()
	p.Check = func(context.Context, criu.Tool) error { cancel(engine.ErrDeadline); return errors.New("killed") }
	if health, err := Diagnose(ctx, p.Host, "drums"); !errors.Is(err, engine.ErrDeadline) {
		t.Errorf("%+v %v", health, err)
	}
	if _, err := Diagnose(context.Background(), p.Host, "house"); !errors.Is(err, engine.ErrUsage) {
		t.Errorf("an arm that does not exist: %v", err)
	}
}

// The fake arm needs no privilege.
func TestTheFakeArmNeedsLittle(t *testing.T) {
	p := goodHost()
	p.edit("/proc/self/status", "Uid:\t0\t0", "Uid:\t1000\t1000")
	p.absent = map[string]bool{"/ip": true}
	if health := diagnose(t, p, "fake"); health.Verdict != OK || bad(health) != nil {
		t.Errorf("%+v", health)
	}
	p.Env = append(p.Env, "CUE_DEBUG=1")
	if health := diagnose(t, p, "fake"); health.Verdict != Lack {
		t.Errorf("%+v", health)
	}
}

// Every kind of finding has a cause above: what a check says is compared with the
// subjects that causes plant.
func TestEverySubjectHasACause(t *testing.T) {
	planted := map[string]bool{}
	for _, c := range causes {
		for _, want := range c.want {
			subject, _, _ := strings.Cut(strings.Fields(want)[1], ":")
			planted[subject] = true
		}
	}
	for _, c := range checks["drums"] {
		if !planted[c.subject] {
			t.Errorf("no cause is planted for %s", c.subject)
		}
	}
	if len(planted) < len(checks["drums"]) {
		t.Errorf("only %v", slices.Sorted(maps.Keys(planted)))
	}
}
