// Package hostview looks at everything on a host that a run could leave behind,
// so that a test and the clean-up gate can say that the host is as it was:
// mounts, processes, control groups, loop devices, network namespaces, links,
// firewall rules (nftables and the older iptables) and every value below
// /proc/sys that does not change by itself.
//
// It only reads. What it cannot read is an error or a finding that says unknown,
// never an empty list. Whose a thing is, it tells by the run's claim and by
// descent (Scope); what somebody else does on the host meanwhile is listed and
// never fails. A value below /proc/sys has no owner: each change of one fails.
package hostview

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/drumsbench/drumsbench/engine"
)

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
	// Loops are bound loop devices by name.
	Loops map[string]Loop
	// NetNamespaces by inode.
	NetNamespaces map[uint64]NetNamespace
	// Links of our network namespace by name.
	Links map[string]Link
	// Rules of the firewall of our network namespace, by where they stand.
	Rules map[string]Rule
	// Sysctls are the values below /proc/sys, by their names as sysctl(8) writes
	// them. Those that only can be written are not among them.
	Sysctls map[string]string
	// Unread are things that could not be read, each with the reason.
	Unread map[string]string
	// earlier are processes of an earlier attempt at the run. They are nobody's children
	// here: once they have ended somebody else waits for them, in their own time.
	earlier map[ProcessID]bool
}

// Mount is one line of the mount table, without what changes by itself.
type Mount struct {
	Point, Root, Type, Source, Options, Propagation string
	// Layers are an overlay's own options, which say whose it is; empty for others.
	Layers string
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
	// Ours: it is in a group of the scope, or descends from this process and is in no other run's.
	Ours bool
	// netns is its network namespace, 0 for a dead process; closed says that we may not know.
	netns  uint64
	closed bool
}

// Loop is a bound loop device.
type Loop struct {
	// Backing file, as the kernel shows it.
	Backing string
	// Name that whoever made it left with it. Only Compare reads it, and only of
	// new devices: to open one can keep its owner from detaching it.
	Name string
}

// NetNamespace is one network namespace.
type NetNamespace struct {
	// Processes that live in it.
	Processes []ProcessID
	// Held says how this process itself keeps it, by a descriptor or a thread; empty if it does not.
	Held string
}

// Link is a network interface.
type Link struct {
	Type  string
	Index int
	// Names are its alias and its other names.
	Names []string
	// Peer is our number for the namespace that its other end is in, -1 for none.
	Peer int
	// Address of its hardware.
	Address string
	// within says that its other end is in a namespace of ours; moved, in which one of ours it is now.
	within bool
	moved  string
}

// Rule is a table, a chain, a rule or a set of the firewall.
type Rule struct {
	// Text is its kind with a digest of its content, without counters.
	Text string
	// Ours: the run's claim is in its name, its comment or its content.
	Ours bool
}

// Take reads the host. It takes some ten milliseconds and changes nothing, but
// that the kernel may load its nf_tables module when it is asked for rules. When
// ctx ends it stops with ctx's error.
func Take(ctx context.Context, scope Scope) (Snapshot, error) {
	s := Snapshot{Time: time.Now(), Scope: scope, Unread: map[string]string{}}
	for _, part := range []struct {
		name string
		read func(*Snapshot) error
	}{
		{"mounts", readMounts},
		{"processes", readProcesses},
		{"network namespaces", readOwnNamespaces},
		{"control groups", readCgroups},
		{"loop devices", readLoops},
		{"links", readLinks},
		{"firewall", readFirewall},
		{"sysctls", readSysctls},
	} {
		if err := ctx.Err(); err != nil {
			return Snapshot{}, &engine.Error{Op: "look at host", Err: err}
		}
		if err := part.read(&s); err != nil {
			return Snapshot{}, &engine.Error{Op: "look at host", Err: fmt.Errorf("%w: %s: %w", engine.ErrUnknown, part.name, err)}
		}
	}
	return s, nil
}

// self is the process whose descendants are ours.
var self = os.Getpid
