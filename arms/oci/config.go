package oci

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/docker/go-units"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/drumsbench/drumsbench/arms/confine"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// criuConfig is the annotation by which runc takes a file of criu's settings
// (runc, docs/checkpoint-restore.md). It wins over what runc asks of criu by its
// request, but for the mode of cgroups (see dumpSettings); without it runc would
// take /etc/criu/runc.conf.
const criuConfig = "org.criu.config"

// config is what a slot's config.json is made from.
type config struct {
	name, root, cgroups string
	// netns is the path of a namespace; empty for one that runc makes.
	netns     string
	args, env []string
	resources bench.Resources
	seccomp   *specs.LinuxSeccomp
}

// spec is the container's configuration. It binds nothing of the host's: what runc
// would mask by a bind of /dev/null, which criu takes for the host's, is left alone;
// what is made read-only is a bind of the slot's own (confine.ReadOnly).
func (c config) spec() (*specs.Spec, error) {
	memory, err := units.RAMInBytes(string(c.resources.Memory))
	if err != nil {
		return nil, err
	}
	swap, err := units.RAMInBytes(string(c.resources.Swap))
	if err != nil {
		return nil, err
	}
	both, pids := memory+swap, c.resources.Pids
	period := uint64(100 * time.Millisecond / time.Microsecond)
	quota := c.resources.Vcpus * int64(period)
	mount := func(at, fstype string, options ...string) specs.Mount {
		return specs.Mount{Destination: at, Type: fstype, Source: fstype, Options: options}
	}
	capabilities := confine.KeptNames()
	return &specs.Spec{
		Version:  "1.0.2",
		Hostname: c.name,
		Root:     &specs.Root{Path: c.root},
		Process: &specs.Process{
			Args: c.args, Env: c.env, Cwd: "/",
			Capabilities: &specs.LinuxCapabilities{Bounding: capabilities, Effective: capabilities, Permitted: capabilities},
		},
		Mounts: []specs.Mount{
			mount("/proc", "proc", "nosuid", "nodev", "noexec"),
			mount("/sys", "sysfs", "nosuid", "nodev", "noexec", "ro"),
			mount("/dev", "tmpfs", "nosuid", "noexec", "mode=755", "size=1m"),
			mount("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"),
			mount("/dev/shm", "tmpfs", "nosuid", "nodev", "noexec", "mode=1777", "size=64m"),
		},
		Linux: &specs.Linux{
			CgroupsPath: c.cgroups,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
				{Type: specs.NetworkNamespace, Path: c.netns},
			},
			Resources: &specs.LinuxResources{
				CPU:     &specs.LinuxCPU{Quota: &quota, Period: &period},
				Memory:  &specs.LinuxMemory{Limit: &memory, Swap: &both},
				Pids:    &specs.LinuxPids{Limit: &pids},
				Devices: devices(),
			},
			Seccomp:       c.seccomp,
			ReadonlyPaths: confine.ReadOnlyPaths(),
		},
	}, nil
}

// devices are confine.DeviceRules as runc takes them: a number that is not there is every one.
func devices() []specs.LinuxDeviceCgroup {
	rules := confine.DeviceRules()
	for i, r := range rules {
		if *r.Major < 0 {
			rules[i].Major = nil
		}
		if *r.Minor < 0 {
			rules[i].Minor = nil
		}
		if r.Type == "a" {
			rules[i].Type = ""
		}
	}
	return rules
}

// dumpSettings and restoreSettings are criu's settings for one operation, in the
// form of its configuration files.
//
// The cgroups are ours and criu is to leave them alone, which this file cannot
// say: runc asks for criu's mode soft, or another that is a flag of its own, and
// that wins. In that mode criu keeps the settings of every group from the task's
// own on downwards, in each hierarchy, and where the task is in the root group
// that is the whole host's: a restore would write to groups of other people. So
// only one controller is dumped, in whose hierarchy the slot has a group of its
// own, and the images are looked at (Container.Dumped). On v1, where criu dumps
// from inside the slot's limits, it keeps none at all.
func dumpSettings(p bench.CheckpointPolicy) (string, error) {
	ghost, err := units.RAMInBytes(string(p.GhostLimit))
	if err != nil {
		return "", err
	}
	return Settings(p, fmt.Sprintf("ghost-limit %d", ghost)), nil
}

// dumpedController is the only one whose settings criu keeps.
const dumpedController = "pids"

func restoreSettings(p bench.CheckpointPolicy) string { return Settings(p, "leave-stopped") }

// Settings are those of every operation, and more.
func Settings(p bench.CheckpointPolicy, more ...string) string {
	lines := append([]string{"network-lock skip", "cgroup-dump-controller " + dumpedController}, more...)
	if p.EstablishedTCP == "close" {
		lines = append(lines, "tcp-close")
	}
	return strings.Join(lines, "\n") + "\n"
}

// profile reads the seccomp profile that the manifest pins. Without one a slot gets no protection keys, and every other call.
func profile(folder string, pin *bench.PinnedFile) (*specs.LinuxSeccomp, error) {
	if pin == nil {
		return confine.NoKeys(), nil
	}
	const op = "read seccomp profile"
	path := pin.File
	if !filepath.IsAbs(path) {
		path = filepath.Join(folder, path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%w: %w", engine.ErrRefused, err)}
	}
	if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != string(pin.Sha256) {
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%w: %s has digest %x, the manifest asks for %s", engine.ErrRefused, path, sum, pin.Sha256),
			Hint: "pin the profile anew, or bring the pinned one back"}
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	s := &specs.LinuxSeccomp{}
	if err := d.Decode(s); err != nil {
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%w: %s: %w", engine.ErrRefused, path, err),
			Hint: "the form is that of linux.seccomp in the OCI runtime specification"}
	}
	return s, nil
}
