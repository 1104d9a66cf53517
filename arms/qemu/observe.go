package qemu

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"
	vishnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Observe implements engine.Slot.
func (s *slot) Observe(ctx context.Context, aspects ...engine.Aspect) engine.Observation {
	return s.look(ctx, engine.ViewHost, aspects)
}

// Observe implements engine.Stopped.
func (s *stopped) Observe(ctx context.Context, aspects ...engine.Aspect) engine.Observation {
	return s.look(ctx, engine.ViewStopped, aspects)
}

func (p *place) look(ctx context.Context, view bench.View, aspects []engine.Aspect) engine.Observation {
	p.mu.Lock()
	t := p.now
	p.mu.Unlock()
	if t == nil || t.parked {
		return engine.Unobserved(view, aspects, "the slot is dead: it has no machine")
	}
	if ended, err := t.ended(); err != nil {
		return engine.Unobserved(view, aspects, err.Error())
	} else if ended {
		return engine.Unobserved(view, aspects, "the slot is dead: its machine has ended")
	}
	return p.observe(ctx, t, view, aspects)
}

// asked are the aspects that the guest is asked for.
var asked = map[engine.Aspect]string{
	engine.AspectLimits: proto.AspectLimits, engine.AspectMounts: proto.AspectMounts, engine.AspectNetwork: proto.AspectNetwork,
	engine.AspectLocks: proto.AspectLocks, engine.AspectProcesses: proto.AspectProcesses, engine.AspectState: proto.AspectState,
}

const guestSource = "guest server /observe"

func (p *place) observe(ctx context.Context, t *tenancy, view bench.View, aspects []engine.Aspect) (o engine.Observation) {
	t.asking.Lock()
	defer t.asking.Unlock()
	var ask []string
	for _, a := range aspects {
		if word, there := asked[a]; there {
			ask = append(ask, word)
		}
	}
	var said guest.Observation
	var silent error
	switch {
	case len(ask) == 0:
	case t.self:
		silent = errSelf
	case view == engine.ViewStopped:
		said, silent = t.frozen(ctx)
	default:
		said, silent = t.client().Observe(ctx, ask, t.exclude)
	}
	for _, a := range aspects {
		switch a {
		case engine.AspectLimits:
			o.Limits = p.limits(ctx, t, view, said, silent)
		case engine.AspectMounts:
			o.Mounts = fromGuest(said.Mounts, proto.AspectMounts, said, silent)
		case engine.AspectNetwork:
			o.Network = fromGuest(said.Network, proto.AspectNetwork, said, silent)
		case engine.AspectLocks:
			o.Locks = fromGuest(said.Locks, proto.AspectLocks, said, silent)
		case engine.AspectProcesses:
			o.Processes = fromGuest(said.Processes, proto.AspectProcesses, said, silent)
			if list, known := o.Processes.Get(); known {
				o.Processes = engine.Known(withoutServerThreads(list), o.Processes.Source(), o.Processes.View())
			}
		case engine.AspectState:
			o.State = fromGuest(said.State, proto.AspectState, said, silent)
		case engine.AspectEnclosure:
			o.Enclosure = reading(view, "query-named-block-nodes, query-chardev, sockets and links of QEMU's network namespace", func() ([]bench.Finding, error) { return p.enclosure(ctx, t) })
		case engine.AspectToolConfig:
			o.ToolConfig = engine.Known([]string{}, "QEMU was started with -nodefaults, -no-user-config and no variable of the host's", engine.ViewHost)
		case engine.AspectMemory:
			o.Memory = procfs.ReadMemory([]int{t.pid})
		case engine.AspectCPU: // of QEMU: its guest and what it does for it
			o.CPU = t.limits.Usage().CPU
		case engine.AspectObjects: // of QEMU: what the guest holds of a kernel is of its own one
			o.Objects = reading(view, fmt.Sprintf("/proc/%d/ of the machine", t.pid), func() ([]engine.Object, error) { return procfs.ProcessObjects(t.pid, p.privately(t)...) })
		case engine.AspectStorage:
			o.Storage = reading(view, "blocks of "+diskFile, func() (int64, error) { return engine.DiskUse(t.file(diskFile)) })
		}
	}
	return o
}

// privately are the files of the checkpoint that a restored machine may hold open for writing, if it
// maps them privately alone: QEMU before 8.2 opens the memory file so, and writes nothing to it.
func (p *place) privately(t *tenancy) []string {
	if t.from == nil || p.arm.settings.Snapshot != MethodFile {
		return nil
	}
	return []string{in(*t.from, memoryFile)}
}

// frozen is all that a held guest can be asked for, in one exchange for all who
// ask: its tree does not run, so that nothing of it changes until it is resumed.
// An answer that leaves something unknown is asked for anew. t.asking is held.
func (t *tenancy) frozen(ctx context.Context) (guest.Observation, error) {
	if t.said != nil {
		return *t.said, nil
	}
	said, err := t.client().Observe(ctx, slices.Sorted(maps.Values(asked)), t.exclude)
	if err == nil && len(said.Unknown) == 0 {
		t.said = &said
	}
	return said, err
}

// forget is called where the tree of a machine runs, or is another one.
func (t *tenancy) forget() {
	t.asking.Lock()
	defer t.asking.Unlock()
	t.said = nil
}

// fromGuest is an aspect as the guest gave it.
func fromGuest[T any](v *T, word string, said guest.Observation, silent error) engine.Reading[T] {
	switch {
	case silent != nil:
		return engine.Unknown[T](silent.Error(), engine.ViewGuest)
	case v == nil:
		return engine.Unknown[T](said.Unknown[word], engine.ViewGuest)
	}
	return engine.Known(*v, guestSource, engine.ViewGuest)
}

// withoutServerThreads leaves out how many threads the guest server has: it runs
// while the rest is frozen, and its runtime starts them as it likes.
func withoutServerThreads(list []bench.Process) []bench.Process {
	out := slices.Clone(list)
	for i, p := range out {
		if p.Pid == 1 {
			out[i].Threads = 1
		}
	}
	return out
}

// limits are the machine's: vcpus and memory as the hypervisor has them (and no
// more than the guest sees), swap and tasks as the guest's kernel does, and QEMU
// itself in its group.
func (p *place) limits(ctx context.Context, t *tenancy, view bench.View, said guest.Observation, silent error) engine.Reading[engine.Limits] {
	unknown := func(reason string) engine.Reading[engine.Limits] { return engine.Unknown[engine.Limits](reason, view) }
	inside := fromGuest(said.Limits, proto.AspectLimits, said, silent)
	g, known := inside.Get()
	if !known {
		return unknown("the guest's limits: " + inside.Reason())
	}
	if err := t.attach(ctx); err != nil {
		return unknown(err.Error())
	}
	defer t.detach()
	vcpus, memory, err := t.hardware(ctx)
	if err != nil {
		return unknown(err.Error())
	}
	host := t.limits.Read([]int{t.pid})
	of, known := host.Get()
	if !known {
		return unknown("limits of the QEMU process: " + host.Reason())
	}
	seen, err := strconv.ParseInt(string(g.Memory), 10, 64)
	if err != nil {
		return unknown("the guest's memory: " + err.Error())
	}
	swap, err := strconv.ParseInt(string(g.Swap), 10, 64)
	if err != nil {
		return unknown("the guest's swap: " + err.Error())
	}
	// The kernel keeps a part of the RAM to itself, never more than a quarter; one that sees more than there is does not tell the truth.
	if seen > memory || seen < memory/4*3 {
		return unknown(fmt.Sprintf("QEMU has %d bytes of memory, the guest sees %d", memory, seen))
	}
	l := engine.Limits{VCPUs: float64(min(vcpus, int64(g.CPUs))), Memory: memory, Swap: swap, Pids: g.Pids, Tasks: of.Tasks, Outside: of.Outside, Groups: of.Groups,
		Confinement: engine.OwnKernel()}
	if g.Pids == 0 {
		l.Pids = -1
	}
	return engine.Known(l, "query-cpus-fast, query-memory-size-summary; swap and pids: "+guestSource+"; QEMU: "+host.Source(), view)
}

// enclosure is what ties a machine to the outside: disks and channels that are
// not its own, links beside its card's, connections that the policy refuses.
func (p *place) enclosure(ctx context.Context, t *tenancy) ([]bench.Finding, error) {
	found := []bench.Finding{}
	offend := func(subject, text, hint string) {
		found = append(found, bench.Finding{Verdict: engine.Fail, Subject: subject, Text: text, Hint: hint})
	}
	if err := t.attach(ctx); err != nil {
		return nil, err
	}
	defer t.detach()
	var nodes []struct {
		Name     string `json:"node-name"`
		File     string
		ReadOnly bool `json:"ro"`
	}
	if err := t.execute(ctx, "query-named-block-nodes", map[string]any{"flat": true}, &nodes); err != nil {
		return nil, err
	}
	for _, n := range nodes {
		if !n.ReadOnly && n.Name != "disk" && n.Name != "disk-file" {
			offend("block node "+n.Name, "is writable and not the slot's own disk: "+n.File, "give the machine no disk but its own")
		}
	}
	var channels []struct{ Label, Filename string }
	if err := t.execute(ctx, "query-chardev", nil, &channels); err != nil {
		return nil, err
	}
	for _, c := range channels {
		if c.Label != "qmp" && c.Label != "console" && c.Label != "compat_monitor0" {
			offend("channel "+c.Label, "leads out of the machine: "+c.Filename, "give the machine no channel but its console")
		}
	}
	h, err := netlink.NewHandleAt(vishnetns.NsHandle(t.net.Fd()), unix.NETLINK_ROUTE, unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil {
		return nil, err
	}
	for _, l := range links { // a module may put a link of its own into every namespace, down
		if a := l.Attrs(); a.Name != "lo" && a.Name != tapName && a.Flags&net.FlagUp != 0 {
			offend("link "+a.Name, "is up in the machine's network namespace", "leave that namespace to the machine")
		}
	}
	if t.policy.EstablishedTCP == "close" {
		return found, nil
	}
	sockets, err := h.SocketDiagTCP(unix.AF_INET)
	if err != nil {
		return nil, err
	}
	for _, s := range sockets {
		if t.self && s.State == netlink.TCP_LISTEN && s.ID.SourcePort == uint16(t.shape.Port) && s.ID.Source.Equal(forwarded) {
			continue // QEMU's own end of the link
		}
		offend(fmt.Sprintf("TCP connection to %s:%d", s.ID.Destination, s.ID.DestinationPort), "is open from outside of the machine",
			`close it before the dump, or set checkpoint.establishedTCP to "close"`)
	}
	return found, nil
}

func reading[T any](view bench.View, source string, read func() (T, error)) engine.Reading[T] {
	v, err := read()
	if err != nil {
		return engine.Unknown[T](err.Error(), view)
	}
	return engine.Known(v, source, view)
}
