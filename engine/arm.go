package engine

import (
	"context"
	"net"
	"time"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Description is what an arm says of itself before anything runs.
type Description struct {
	Kind string
	// Settings are the effective settings, defaults included, as flat text.
	Settings map[string]string
	// Differences travel with every number of the arm.
	Differences []bench.Difference
	// NotApplicable names gates that the arm lacks by its nature, each with its reason. Never set from a manifest.
	NotApplicable map[string]string
}

// Arm is a mechanism under test. Steps know no arm; an arm supplies five verbs:
// Mount, Provision, Dump (on Slot), Restore and Observe (on Slot and Stopped).
//
// All methods: ctx carries the deadline; when it is cancelled the method ends
// every process that it started and returns ctx's error wrapped. Each owns what
// it makes in ws.Ledger before making it.
type Arm interface {
	// Describe is pure.
	Describe() Description
	// Facts reads what the host is for this arm: kernel, tools, their digests. Errors are unknown facts.
	Facts(ctx context.Context) []bench.Fact
	// Mount compares the image with its pin, then mounts it read-only. ErrRefused if the pin does not hold.
	Mount(ctx context.Context, ws *Workspace, p bench.MountParams) (Root, error)
	// Provision makes a cold slot in a place. place is nil for a new one, else it is vacated and used again.
	// It returns once the limits were read back and the first process of the image was started; readiness is a step of its own.
	Provision(ctx context.Context, ws *Workspace, root Root, place Place, p bench.ProvisionParams) (Slot, error)
	// Restore brings a checkpoint back as a stopped slot. place as in Provision: vacating it is part of the reset (sub-span "kill").
	// A checkpoint of another image, kernel, CPU or tool version is ErrRefused with the reason.
	Restore(ctx context.Context, ws *Workspace, root Root, cp Checkpoint, place Place, p bench.RestoreParams) (Stopped, error)
}

// Root is a mounted image.
type Root interface {
	// Facts: digest, how it was attached, whether the digest was cached.
	Facts() []bench.Fact
	// Verify compares the image with its pin again.
	Verify(ctx context.Context) error
	// Release is idempotent and detached from cancellation by the caller.
	Release(ctx context.Context) error
}

// Place is where a slot is or was: its name, its directories, its cgroups.
type Place interface {
	Name() string
	// Vacate ends every process in the place and proves it. Idempotent.
	Vacate(ctx context.Context) error
	// Release vacates and takes everything away. Idempotent; called with a context of its own.
	Release(ctx context.Context) error
}

// Slot is a running environment.
type Slot interface {
	Place
	// Dial connects to a port on the slot's own loopback interface.
	Dial(ctx context.Context, port int) (net.Conn, error)
	// Observe reads the aspects that were asked for; the others stay unknown. It changes nothing. An aspect that cannot be read is unknown, not an error.
	Observe(ctx context.Context, aspects ...Aspect) Observation
	// Dump ends the tree and seals the checkpoint. The place stays. ErrRefused, with findings, if the slot cannot be dumped as the policy asks; the slot then runs on.
	Dump(ctx context.Context, p bench.DumpParams, guest GuestReference) (Checkpoint, Place, error)
}

// Mortal is an optional interface of a Slot: it can tell that the slot's first
// process has ended, which a guest server that does not answer yet cannot.
type Mortal interface {
	// Alive is nil, or ErrDead with how the first process ended and what it said.
	Alive() error
}

// Renamer is an optional interface of a Slot: its host name is set from outside,
// since a guest that shares the host's kernel may not write kernel settings.
type Renamer interface {
	// SetHostname sets the host name of the slot, and of nothing else.
	SetHostname(ctx context.Context, name string) error
}

// Adopter is an optional interface of an Arm: its slots outlive the process that
// made them, and another process can take them over.
type Adopter interface {
	// Adopt finds image and place of a handle on the host, each thing by the
	// identity that the ledger has, never by a name alone. It makes nothing. The
	// place is a Slot where the handle says that it runs, also if its first process
	// has ended since (Mortal says so), a Stopped where it was restored and not
	// resumed. ErrRefused, with what is not as it was. The root cannot be released:
	// sweep takes away what a ledger owns.
	Adopt(ctx context.Context, ws *Workspace, p bench.AdoptParams) (Root, Place, error)
}

// Heir is an optional interface of an Adopter: an engine that goes on with the run of
// one that was killed can go on in its slots.
type Heir interface {
	// Inherit takes over the image and, of the same run, the places of handles, each as
	// Adopt does. All or nothing: ErrRefused says what is not as it was, and the arm is of
	// no use afterwards. A place in which somebody runs who is not the slot's is refused.
	// The root is released by ws.TakeAway, which must be there.
	Inherit(ctx context.Context, ws *Workspace, image bench.Image, places []bench.PlaceHandle, owned []bench.OwnedThing) (Inheritance, error)
}

// Inheritance is what an Heir took over.
type Inheritance struct {
	Root Root
	// Places are Slots, Stoppeds or Places, in the order of their handles.
	Places []Place
	// Things are the numbers in the ledger of everything that Root and Places stand on.
	Things map[int64]bool
	// Slots are those of them that are control groups which hold a slot's processes and no others.
	Slots map[int64]bool
}

// Fleeting is an optional interface of a Place of an Heir: true while what is in it
// would end with this process.
type Fleeting interface {
	Fleeting() bool
}

// Lasting is an optional interface of a Place of an Adopter.
type Lasting interface {
	// Handle says where the place is, for Adopt.
	Handle() (bench.PlaceHandle, error)
}

// CheckpointOpener is an optional interface of an Arm: it restores checkpoints
// that another run sealed.
type CheckpointOpener interface {
	// OpenCheckpoint reads the checkpoint in dir and requires all that Restore
	// does: that it is whole and of this arm, image, host and program. ErrRefused
	// with a finding for each reason.
	OpenCheckpoint(ctx context.Context, root Root, dir string) (Checkpoint, error)
}

// Stopped is a restored slot that has not run an instruction of the guest yet.
type Stopped interface {
	Place
	Observe(ctx context.Context, aspects ...Aspect) Observation
	// Resume lets the tree run. Not idempotent.
	Resume(ctx context.Context) (Slot, error)
}

// ScreenFile is the name of GuestReference's picture in the checkpoint's folder.
const ScreenFile = "screen.png"

// GuestReference is what the guest server said last before a dump; the arm seals it into the checkpoint.
type GuestReference struct {
	Live   bench.LiveState
	Canary string
	// Screen is a picture of the screen as PNG; nil where the manifest compares none.
	Screen []byte
}

// Checkpoint is a sealed checkpoint on disk.
type Checkpoint struct {
	// Dir is the absolute path of its folder.
	Dir    string
	Handle bench.Checkpoint
}

// Aspect names a part of an observation.
type Aspect string

// The aspects. Locks, processes and mounts are read on the host; Enclosure is everything that ties the slot to the outside.
const (
	AspectLimits     Aspect = "limits"
	AspectMounts     Aspect = "mounts"
	AspectNetwork    Aspect = "network"
	AspectLocks      Aspect = "locks"
	AspectProcesses  Aspect = "processes"
	AspectEnclosure  Aspect = "enclosure"
	AspectState      Aspect = "state"
	AspectToolConfig Aspect = "tool-config"
	AspectMemory     Aspect = "memory"
	// AspectCPU is the processors' time that the kernel has counted for the slot's groups since they were made.
	AspectCPU Aspect = "cpu"
	// AspectStorage is what the slot's own layer or disk takes of the host's disk.
	AspectStorage Aspect = "storage"
	// AspectObjects is what the slot's processes hold of the host's kernel and could share with another slot's.
	AspectObjects Aspect = "objects"
)

// Observation is what an arm read of a slot.
type Observation struct {
	Limits    Reading[Limits]
	Mounts    Reading[[]bench.Mount]
	Network   Reading[bench.Network]
	Locks     Reading[[]bench.Lock]
	Processes Reading[[]bench.Process]
	Enclosure Reading[[]bench.Finding]
	State     Reading[bench.StateManifest]
	// ToolConfig lists files and variables of the host that would change the arm's tools, such as /etc/criu/default.conf.
	ToolConfig Reading[[]string]
	Memory     Reading[Memory]
	CPU        Reading[time.Duration]
	// Storage in bytes of blocks that are allocated.
	Storage Reading[int64]
	Objects Reading[[]Object]
}

// ObjectKind is a kind of kernel object.
type ObjectKind string

// The kinds of objects that slots are audited for. A writable file is a regular one that is open for writing or
// mapped shared and writable. A device is shared by whoever has its number open; a terminal, by its own devpts.
const (
	ObjectProcess   ObjectKind = "process"
	ObjectNamespace ObjectKind = "namespace"
	ObjectPipe      ObjectKind = "pipe"
	ObjectSocket    ObjectKind = "socket"
	ObjectEventFD   ObjectKind = "eventfd"
	ObjectLock      ObjectKind = "lock"
	ObjectFile      ObjectKind = "writable file"
	ObjectDevice    ObjectKind = "device"
)

// Object is one kernel object that a process of the slot holds. Two slots share it where kind and ID are equal: an ID is
// the kernel's own number for the object, never a name.
type Object struct {
	Kind   ObjectKind
	ID     string
	Holder string
}

// Memory is what a slot takes of the host's memory, in bytes, as bench.Memory says.
type Memory struct {
	PrivateDirty, Pss int64
	// Processes that were read; every one of the slot's, or the reading is unknown.
	Processes int
	// Harness is the private dirty memory of what the engine runs beside the slot to keep it.
	Harness int64
	// HarnessCPU is the CPU time that a process of the engine's which keeps the slot's
	// namespaces has used, HarnessLife the time since it was born; no life is no such process.
	HarnessCPU, HarnessLife time.Duration
}

// Limits are the bounds as the kernel enforces them, and who is under them.
type Limits struct {
	// VCPUs is quota over period.
	VCPUs float64
	// Memory and Swap in bytes; Pids a count. -1 is no limit.
	Memory, Swap, Pids int64
	// Tasks of the slot by host pid; Outside are those that are in another group.
	Tasks, Outside []int
	// Groups are the cgroup paths by controller ("" is the v2 hierarchy).
	Groups map[string]string
	// Confinement is what else holds the slot's tasks.
	Confinement Confinement
}

// Confinement is what a slot's tasks can reach as the kernel has it. A text that is
// empty was not read.
type Confinement struct {
	// Capabilities are all that any task holds or can come to hold, by name.
	Capabilities string
	// Devices are what tasks can open, as the kernel says it.
	Devices string
	// Beyond names each thing that reaches further than the arm allows.
	Beyond []string
}

// OwnKernel is the confinement of a slot that is a machine: its capabilities and
// devices are those of its own kernel.
func OwnKernel() Confinement {
	return Confinement{Capabilities: "of a kernel of its own", Devices: "of a kernel of its own"}
}

// Filling is an optional interface of a Slot: its memory may come back while it runs. A slot of which all is there
// does nothing and has no facts.
type Filling interface {
	// BecameReady tells the slot that it is.
	BecameReady(ctx context.Context) error
	// PageFacts say what came back so far, and what that took. They are named "pages.".
	PageFacts(ctx context.Context) []bench.Fact
}

// Telling is an optional interface of a Slot: facts about how it came to run,
// which the step that started it records.
type Telling interface {
	Facts() []bench.Fact
}
