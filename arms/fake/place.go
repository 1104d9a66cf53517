package fake

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/docker/go-units"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// undoTime bounds what is done after a failure or a cancellation.
const undoTime = 30 * time.Second

// place is where a slot is. Slot and Stopped are views of it; each reset makes a new tenancy.
type place struct {
	arm  *Arm
	ws   *engine.Workspace
	root *root
	name string

	mu   sync.Mutex
	now  *tenancy
	next int
}

// tenancy is one life of a slot: what a provision or a restore makes and a reset takes away.
type tenancy struct {
	arm      *Arm
	nth      int
	restored bool
	dir      *ownedPath
	file     *ownedPath
	limits   engine.Limits
	policy   bench.CheckpointPolicy
	exclude  []string
	// from is the folder of the checkpoint that it was restored from.
	from string

	mu sync.Mutex
	// held are the canaries that programs in the slot hold.
	held map[string]bool
	// world is what the guest is; nil before there is one and after the end.
	world *world
	// running since; zero while the tree is stopped.
	since time.Time
	// listens from then on; zero while nobody listens.
	listens time.Time
	server  *server
}

// fault says whether a fault is planted in this slot.
func (t *tenancy) fault(name string) bool { return t.arm.faults.slot(name, t.restored, t.nth) }

func (t *tenancy) pause(ctx context.Context) error { return t.arm.faults.pause(ctx, t.fault("slow")) }

// counter of the live state: it goes on by time and with each probe.
func (t *tenancy) counter() uint64 {
	n := t.world.Counter
	if !t.since.IsZero() && !t.fault("counter-stopped") {
		n += uint64(time.Since(t.since) / proto.TickPeriod)
	}
	return n
}

// Name implements engine.Place.
func (p *place) Name() string { return p.name }

// takePlace returns the place to build in: the vacated old one, or a new one.
func (a *Arm) takePlace(ctx context.Context, ws *engine.Workspace, r engine.Root, old engine.Place, name string) (*place, error) {
	mounted, ok := mountedRoot(r)
	if !ok {
		return nil, fmt.Errorf("take place: root of another arm: %T", r)
	}
	if old == nil {
		p := &place{arm: a, ws: ws, root: mounted, name: name}
		mounted.enter(name)
		return p, nil
	}
	var p *place
	switch v := old.(type) {
	case *place:
		p = v
	case *slot:
		p = v.place
	case *stopped:
		p = v.place
	default:
		return nil, fmt.Errorf("take place: place of another arm: %T", old)
	}
	defer engine.StartSpan(ctx, "kill")()
	return p, p.Vacate(ctx)
}

// move starts a new tenancy: what it owns on disk, ledger first, and its bounds.
func (p *place) move(r bench.Resources, restored bool) (*tenancy, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now != nil {
		return nil, errors.New("move into place: it is taken")
	}
	p.arm.mu.Lock()
	p.arm.slots++
	nth := p.arm.slots
	p.arm.mu.Unlock()
	t := &tenancy{arm: p.arm, nth: nth, restored: restored}
	p.now = t // from here on vacate takes away whatever was made
	path := filepath.Join(p.ws.Work, fmt.Sprintf("%s.%d", p.name, p.next))
	p.next++
	var err error
	if t.dir, err = ownDirectory(p.ws, path); err != nil {
		return nil, err
	}
	remember(&lives.tenancies, t.dir.identity, t)
	if t.file, err = ownFile(p.ws, path+".slot", []byte(p.name+"\n")); err != nil {
		return nil, err
	}
	memory, err := units.RAMInBytes(string(r.Memory))
	if err != nil {
		return nil, fmt.Errorf("resources.memory: %w", err)
	}
	swap, err := units.RAMInBytes(string(r.Swap))
	if err != nil {
		return nil, fmt.Errorf("resources.swap: %w", err)
	}
	if t.fault("limits-ignored") {
		memory = -1
	}
	t.limits = engine.Limits{VCPUs: float64(r.Vcpus), Memory: memory, Swap: swap, Pids: r.Pids, Groups: map[string]string{"": "/fake/" + p.name}, Confinement: engine.OwnKernel()}
	return t, nil
}

// plant puts the faults of a slot's inside into its world.
func (t *tenancy) plant(w *world) {
	if t.fault("foreign-mount") {
		w.Mounts = append(w.Mounts, bench.Mount{Point: "/dev/tty", Root: "/tty", Fstype: "devtmpfs", Source: "udev", Options: []string{"rw"}, Super: []string{"rw"}})
	}
	if t.fault("foreign-sys") {
		w.Mounts = append(w.Mounts, mount("/sys/fs/bpf", "bpf"), mount("/sys/kernel/config", "configfs"), mount("/sys/kernel/debug", "debugfs"))
	}
	if t.fault("network-down") {
		w.Network.Links = slices.Clone(w.Network.Links)
		w.Network.Links[0].Up, w.Network.Addresses = false, []string{}
	}
	if _, planted := w.files["/opt/test"]; !planted && t.fault("checker-other") {
		w.files["/opt"] = file{Directory: true, Mode: 0o755}
		w.files["/opt/test"] = w.files["/usr/bin/test"]
		w.files["/usr/bin/test"] = file{Mode: 0o755, Data: []byte("/opt/test -d /root/Desktop/done\n")}
	}
	if t.fault("server-wrong-digest") {
		w.Server = digest([]byte("another program"))
	}
	if t.fault("service-dead") && len(w.Services) > 0 {
		w.Services[0].Alive, w.Services[0].Ready, w.Services[0].Exit = false, false, "exit 1"
	}
}

// run lets the world go on: its clock ticks and its server listens.
func (t *tenancy) run() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.since = time.Now()
	if t.fault("provision-dead") {
		return
	}
	t.listens = t.since
	if t.fault("slow-start") {
		t.listens = t.since.Add(SlowStart)
	}
	t.server = serve(t)
}

// end stops the world for good. Idempotent.
func (t *tenancy) end(ctx context.Context) error {
	t.mu.Lock()
	s := t.server
	t.server, t.listens, t.world = nil, time.Time{}, nil
	t.mu.Unlock()
	return s.close(ctx)
}

// Vacate implements engine.Place.
func (p *place) Vacate(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.now
	if t == nil {
		return nil
	}
	if err := t.end(ctx); err != nil {
		return &engine.Error{Op: "vacate " + p.name, Err: err}
	}
	if err := errors.Join(t.file.remove(), t.dir.remove()); err != nil {
		return &engine.Error{Op: "vacate " + p.name, Err: err}
	}
	forget(lives.tenancies, t.dir.identity)
	p.now = nil
	return nil
}

// Release implements engine.Place.
func (p *place) Release(ctx context.Context) error {
	p.mu.Lock()
	t := p.now
	p.mu.Unlock()
	if t != nil && t.fault("release-error") {
		return &engine.Error{Op: "release " + p.name, Err: errors.Join(t.end(ctx), fmt.Errorf("remove %s: device or resource busy", t.dir.path))}
	}
	if err := p.Vacate(ctx); err != nil {
		return err
	}
	p.root.leave(p.name)
	return nil
}

// abandon takes away what a failed provision or restore made; a new place goes
// altogether, an old one stays vacant so that it can be tried again.
func (p *place) abandon(ctx context.Context, op string, err error, whole bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	undo := p.Vacate
	if whole {
		undo = p.Release
	}
	if uerr := undo(ctx); uerr != nil {
		err = fmt.Errorf("%w; and then: %w", err, uerr)
	}
	var e *engine.Error
	if errors.As(err, &e) {
		return err
	}
	return &engine.Error{Op: op, Err: err}
}

// slot is a running tree.
type slot struct{ *place }

// stopped is a restored tree that has not run yet.
type stopped struct{ *place }

// tenancy is the place's present one; nil if it is vacant.
func (p *place) tenancy() *tenancy {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

// Dial implements engine.Slot.
func (s *slot) Dial(ctx context.Context, port int) (net.Conn, error) {
	dead := func(what string) error {
		return &engine.Error{Op: fmt.Sprintf("dial port %d of %s", port, s.name), Err: fmt.Errorf("%w: %s", engine.ErrDead, what)}
	}
	t := s.tenancy()
	if t == nil {
		return nil, dead("nothing runs there")
	}
	t.mu.Lock()
	server, world, listens := t.server, t.world, t.listens
	t.mu.Unlock()
	if server == nil || world == nil || port != world.Port || listens.IsZero() || time.Now().Before(listens) {
		return nil, dead("connection refused")
	}
	conn, err := server.connect(ctx)
	if err != nil {
		return nil, &engine.Error{Op: fmt.Sprintf("dial port %d of %s", port, s.name), Err: err}
	}
	return conn, nil
}

// Facts implements engine.Telling: which of the arm's slots it is.
func (s *slot) Facts() []bench.Fact {
	t := s.tenancy()
	if t == nil {
		return []bench.Fact{{Name: "fake.tenancy", Reason: "nothing runs there", View: engine.ViewHost}}
	}
	return []bench.Fact{{Name: "fake.tenancy", Known: true, Value: fmt.Sprint(t.nth), Source: "engine", View: engine.ViewHost}}
}

// SetHostname implements engine.Renamer.
func (s *slot) SetHostname(_ context.Context, name string) error {
	t := s.tenancy()
	if t == nil {
		return &engine.Error{Op: "set host name of " + s.name, Err: engine.ErrDead}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.world == nil {
		return &engine.Error{Op: "set host name of " + s.name, Err: engine.ErrDead}
	}
	t.world.Hostname = name
	return nil
}
