// Package hostview looks at everything on a host that a run could leave behind,
// so that a test and the clean-up gate can say that the host is as it was:
// mounts, processes, control groups, loop devices, network namespaces, links.
//
// It only reads. What it cannot read is an error, never an empty list; and a
// change that nobody else can be shown to have made counts as ours where the
// host was said to be exclusively ours.
package hostview

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/drumsbench/drumsbench/engine"
)

// Scope tells what is ours from what others do on the host meanwhile.
type Scope struct {
	// ID of the run. A control group, and every process in it, is ours if a part
	// of its path begins with "drums-<ID>". Empty: any "drums-".
	ID string
	// Paths of ours: a mount on or of something below one of them, or a loop
	// device backed by it, is ours.
	Paths []string
	// Exclusive says that nobody else works on the host: every change of mounts,
	// control groups, loop devices and links is ours. Foreign processes still
	// come and go.
	Exclusive bool
}

// Snapshot is the host at one moment, as seen from our namespaces. The maps
// hold one key for each thing; how it reads to a person is the value.
type Snapshot struct {
	Time  time.Time
	Scope Scope
	// Mounts of our mount namespace. Keys name mount point, root, type, source,
	// options and propagation; values count equal ones.
	Mounts map[Mount]int
	// Processes without kernel threads, by pid and start time.
	Processes map[ProcessID]Process
	// Cgroups of every mounted hierarchy, as directories.
	Cgroups map[string]bool
	// Loops are bound loop devices with their backing files.
	Loops map[string]string
	// NetNamespaces by inode, with the processes that live in them.
	NetNamespaces map[uint64][]ProcessID
	// Links of our network namespace: name to index and type.
	Links map[string]string
}

// Mount is one line of the mount table, without what changes by itself.
type Mount struct {
	Point, Root, Type, Source, Options, Propagation string
}

// ProcessID names a process on one boot.
type ProcessID struct {
	Pid int
	// Start in clock ticks since boot.
	Start uint64
}

// Process is what is said of one.
type Process struct {
	Name   string
	State  string
	Parent int
	// Cgroup is its v2 group.
	Cgroup string
	// Ours: it descends from this process or is in a group of the scope.
	Ours bool
	// netns is its network namespace, 0 for a dead process; closed says that we may not know.
	netns  uint64
	closed bool
}

// Take reads the host. It takes a few milliseconds and changes nothing; when ctx
// ends it stops with ctx's error.
func Take(ctx context.Context, scope Scope) (Snapshot, error) {
	s := Snapshot{Time: time.Now(), Scope: scope}
	for _, part := range []struct {
		name string
		read func(*Snapshot) error
	}{
		{"mounts", readMounts},
		{"processes", readProcesses},
		{"control groups", readCgroups},
		{"loop devices", readLoops},
		{"links", readLinks},
	} {
		if err := ctx.Err(); err != nil {
			return Snapshot{}, &engine.Error{Op: "look at host", Err: err}
		}
		if err := part.read(&s); err != nil {
			return Snapshot{}, &engine.Error{Op: "look at host", Err: fmt.Errorf("%s: %w", part.name, err)}
		}
	}
	return s, nil
}

// self is the process whose descendants are ours.
var self = os.Getpid
