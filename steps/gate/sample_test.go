package gate

import (
	"fmt"
	"slices"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// The samples are what a slot of the locks workload looks like.

func sampleResources() bench.Resources {
	return bench.Resources{Vcpus: 2, Memory: "512MiB", Swap: "0", Pids: 128}
}

func sampleLimits() engine.Limits {
	return engine.Limits{VCPUs: 2, Memory: 512 << 20, Swap: 0, Pids: 128, Tasks: []int{4242, 4243}, Groups: map[string]string{"memory": "/run/drums"},
		Confinement: engine.Confinement{Capabilities: "CAP_CHOWN", Devices: "c 1:3 rwm"}}
}

func sampleMounts() []bench.Mount {
	return []bench.Mount{
		{Point: "/", Root: "/", Fstype: "overlay", Source: "overlay", Options: []string{"rw", "relatime"},
			Super: []string{"rw", "lowerdir=/a:/b", "upperdir=/u", "workdir=/w", "index=on", "nfs_export=on", "xino=off"}},
		{Point: "/proc", Root: "/", Fstype: "proc", Source: "proc", Options: []string{"rw", "nosuid", "nodev", "noexec"}, Super: []string{"rw"}},
		{Point: "/dev", Root: "/", Fstype: "tmpfs", Source: "tmpfs", Options: []string{"rw", "nosuid", "shared:7"}, Super: []string{"rw", "size=1024k", "mode=755"}},
		{Point: "/dev/pts", Root: "/", Fstype: "devpts", Source: "devpts", Options: []string{"rw"}, Super: []string{"rw", "gid=5", "mode=620"}},
	}
}

func sampleNetwork() bench.Network {
	return bench.Network{
		Links:     []bench.Link{{Name: "lo", Type: "device", Up: true, Mtu: 65536, Mac: "00:00:00:00:00:00"}},
		Addresses: []string{"lo 127.0.0.1/8 scope host", "lo ::1/128 scope host"},
		Routes:    []string{"local 127.0.0.0/8 dev lo table local proto kernel scope host src 127.0.0.1"},
		Rules:     []string{"inet 0: from all lookup local", "inet 32766: from all lookup main"},
	}
}

func sampleLocks() []bench.Lock {
	return []bench.Lock{
		{Path: "/root/notes.db", Pid: 7, Type: "POSIX", Mode: "READ", Start: "1073741826", End: "1073742335", Mapped: false},
		{Path: "/root/notes.db-shm", Pid: 7, Type: "POSIX", Mode: "READ", Start: "124", End: "124", Mapped: true},
		{Path: "/root/whole", Pid: 8, Type: "FLOCK", Mode: "WRITE", Start: "0", End: "-1", Mapped: false},
	}
}

func sampleProcesses() []bench.Process {
	return []bench.Process{
		{Pid: 1, Parent: 0, Group: 1, Session: 1, Argv: []string{"/usr/local/bin/guestd", "init"}, Exe: "/usr/local/bin/guestd", Cwd: "/",
			Uids: []int64{0, 0, 0, 0}, Gids: []int64{0, 0, 0, 0}, Groups: []int64{}, Threads: 5},
		{Pid: 7, Parent: 1, Group: 7, Session: 7, Argv: []string{"python3", "/usr/lib/locks.py"}, Exe: "/usr/bin/python3", Cwd: "/root",
			Uids: []int64{1000, 1000, 1000, 1000}, Gids: []int64{1000, 1000, 1000, 1000}, Groups: []int64{27, 44}, Threads: 1},
	}
}

func sampleState() bench.StateManifest {
	return bench.StateManifest{
		Exclude: []string{"/tmp"},
		Entries: []bench.StateEntry{
			{Path: "/dev/console", Type: "char", Mode: 0o600, Rdev: "1281"},
			{Path: "/etc/motd", Type: "whiteout"},
			{Path: "/root", Type: "directory", Mode: 0o700, Opaque: true},
			{Path: "/root/.canary", Type: "file", Mode: 0o644, Uid: 1000, Gid: 1000, Size: "64", Sha256: "ab", Xattrs: map[string]string{"user.a": "1"}},
			{Path: "/root/link", Type: "symlink", Mode: 0o777, Target: "notes.db"},
		},
	}
}

func sampleCheckpoint() bench.Checkpoint {
	return bench.Checkpoint{
		ApiVersion: engine.APIVersion, Arm: "drums", Created: "2025-01-02T03:04:05Z", Workload: "aa", Image: "bb",
		Layers: []string{"layers/0"}, CopyUp: []string{}, Locks: sampleLocks(),
		Reference: bench.Reference{
			Mounts: sampleMounts(), Network: sampleNetwork(), Processes: sampleProcesses(),
			Live: bench.LiveState{Token: "t", Counter: "100"}, Canary: "c", State: "cc",
		},
		Files: []bench.SealedFile{{Path: "images/core-1.img", Sha256: "dd", Size: "1", Dev: "1", Ino: "1", Mtime: "1", Ctime: "1"}},
		Facts: []bench.Fact{{Name: engine.NetworkPreserved, Known: true, Value: "netdev-9 ifaddr-9 route-9", Source: "criu images", View: engine.ViewHost}},
	}
}

// sorted is a set as text.
func sorted[T any](list []T) string {
	lines := make([]string, len(list))
	for i, v := range list {
		lines[i] = text(v)
	}
	slices.Sort(lines)
	return text(lines)
}

func typeName(v any) string { return fmt.Sprintf("%T", v) }
