package proto

import "github.com/drumsbench/drumsbench/schemas/bench"

// Requests of ours beside GET /probe; the public server has none of them. Those
// with a machine's effect are refused (409) by a guestd that is not in a virtual
// machine of its own: the clock is the host's there, and freezing the host's to do.
//
//	POST /observe  ObserveRequest -> 200 Observation
//	POST /clock    ClockRequest   -> 200 ClockResponse, 409, 500 it was not set
//	POST /freeze   FreezeRequest  -> 200 FreezeResponse, 409, 500 the tree is not as was asked for
const (
	PathObserve = "/observe"
	PathClock   = "/clock"
	PathFreeze  = "/freeze"
)

// The aspects that an ObserveRequest may ask for, in the engine's words.
const (
	AspectLimits    = "limits"
	AspectMounts    = "mounts"
	AspectNetwork   = "network"
	AspectLocks     = "locks"
	AspectProcesses = "processes"
	AspectState     = "state"
)

// ObserveRequest asks for the guest's own view of parts of its slot.
type ObserveRequest struct {
	Aspects []string `json:"aspects"`
	// Exclude are paths that the state leaves out with everything below them.
	Exclude []string `json:"exclude,omitempty"`
}

// Observation answers it. Each aspect that was asked for is there, or has its
// reason in Unknown. A tree that runs may change while it is read: freeze it first
// where that matters.
type Observation struct {
	Version string `json:"version"`
	// Mounts are raw, as in Probe.
	Mounts    *[]bench.Mount       `json:"mounts,omitempty"`
	Network   *bench.Network       `json:"network,omitempty"`
	Processes *[]bench.Process     `json:"processes,omitempty"`
	Locks     *[]bench.Lock        `json:"locks,omitempty"`
	State     *bench.StateManifest `json:"state,omitempty"`
	Limits    *Limits              `json:"limits,omitempty"`
	Unknown   map[string]string    `json:"unknown,omitempty"`
}

// Limits of a virtual machine as its own kernel has them.
type Limits struct {
	// Memory and Swap that the kernel manages, in bytes: MemTotal is somewhat less than the machine's RAM.
	Memory bench.Int64 `json:"memory"`
	Swap   bench.Int64 `json:"swap"`
	// CPUs that are online.
	CPUs int `json:"cpus"`
	// Pids is the limit on tasks; 0 for none. Tasks is how many there are, guestd's included.
	Pids  int64 `json:"pids"`
	Tasks int64 `json:"tasks"`
}

// ClockRequest sets CLOCK_REALTIME.
type ClockRequest struct {
	// Time in nanoseconds since the epoch; absent for the RTC's, which is read at the
	// moment in which its second changes: that takes up to a second.
	Time bench.Int64 `json:"time,omitempty"`
}

// ClockResponse says what became of it; all in nanoseconds.
type ClockResponse struct {
	// Source is "request" or "rtc".
	Source string `json:"source"`
	// Before is what the clock showed, Set what it was set to at that moment, After what it showed when it was read back.
	Before bench.Int64 `json:"before"`
	Set    bench.Int64 `json:"set"`
	After  bench.Int64 `json:"after"`
	// Skew is Set minus Before: how far behind the clock was.
	Skew bench.Int64 `json:"skew"`
}

// FreezeRequest stops every process of the guest but guestd, or lets them go on.
type FreezeRequest struct {
	Frozen bool `json:"frozen"`
	// Entropy is EntropySize bytes that no other slot was given, of which the kernel's generator
	// of random numbers is made anew before anything is let go on: the memory of siblings holds the
	// same one. Absent, the generator stays as it is.
	Entropy []byte `json:"entropy,omitempty"`
}

// EntropySize is how much a generator is made anew of, in bytes.
const EntropySize = 32

// FreezeResponse is the state as it was read back.
type FreezeResponse struct {
	Frozen bool `json:"frozen"`
	// Reseeded: the kernel took the entropy and made its generator anew.
	Reseeded bool `json:"reseeded,omitempty"`
}
