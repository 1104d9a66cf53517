// Package tree is what the arms that dump and restore process trees with CRIU
// have in common: how such a slot is observed, judged before its dump, sealed
// into a checkpoint, repaired, continued and reaped. It exists so that a gate
// means the same on each of these arms: their readings come from the same code.
//
// Always holds: an observation changes nothing, and is unknown where the tree
// ended meanwhile; a census is taken of a tree that stands still; nothing is
// believed of CRIU that was not read back from the kernel or from its images.
package tree

import (
	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/overlay"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Tree is a slot's process tree with what it stands on, as its arm knows it.
type Tree struct {
	// Name of the slot.
	Name string
	// Pid of the slot's first process, on the host.
	Pid int
	// Limits are the groups that the slot is held to.
	Limits *cgroup.Limits
	// Policy and Locks are what the manifest and the arm's setting say of a dump.
	Policy bench.CheckpointPolicy
	Locks  string
	// Holders are host pids outside the slot that may share its network namespace.
	Holders []int
	// Tracer is the criu that holds the tree stopped, 0 for none.
	Tracer int
	// Image is the mounted image, Layers the sealed layers over it, lowest first;
	// Upper and Work are the slot's own. Absolute.
	Image       string
	Layers      []string
	Upper, Work string
	// Exclude are the paths that the state manifest leaves out.
	Exclude []string
	Hashes  *overlay.HashCache
	// Ended says whether the first process has ended, as a zombie too.
	Ended func() (bool, error)
	// Memory reads the slot's memory with that of what the engine keeps beside it.
	Memory func() engine.Reading[engine.Memory]
	// Strays lists what else ties the slot to the outside in the arm's own way; nil for nothing.
	Strays func() ([]bench.Finding, error)
}

// NonNil turns nil into an empty list, which is another thing in a record.
func NonNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
