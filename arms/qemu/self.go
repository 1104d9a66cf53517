package qemu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// An image with partitions, as the public OSWorld image, boots itself: QEMU's
// firmware runs its boot loader, and its own init and server keep running. It
// takes its address by DHCP from QEMU's user networking, which lets it reach
// nothing and is reached through one port of QEMU's own network namespace. A
// restored machine of this kind is held by QEMU itself: not an instruction runs
// before it is resumed.
//
// Nothing in such a guest freezes its tree, reads its kernel as root, or sets its
// clock for us. What only that could say is unknown, and whatever asks for it blocks.

// factBoots says what boots the image, where no kernel was taken out of it.
const factBoots = "guest.boots"

// errSelf is why nothing is known of what is inside of such a machine.
var errSelf = errors.New("the image boots itself and keeps its own init and server: nothing in it freezes its tree, reads its kernel for the engine or sets its clock")

const selfHint = "build an image whose disk is one file system with a kernel and guestd in it (image.partition 0)"

// forwarded is where QEMU listens for us, in its own network namespace.
var forwarded = net.IPv4(127, 0, 0, 1)

// netdev is the other end of the machine's network card.
func netdev(b boot, s shape) string {
	if b.self() {
		return fmt.Sprintf("user,id=net,ipv6=off,restrict=on,hostfwd=tcp:%s:%d-%s:%d", forwarded, s.Port, guestAddress, s.Port)
	}
	return "tap,id=net,vhost=off,fd=" + strconv.Itoa(fdTap)
}

// loopbackUp brings up lo of the calling thread's network namespace.
func loopbackUp() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err == nil {
		err = h.LinkSetUp(lo)
	}
	if err != nil {
		return &engine.Error{Op: "make link of machine", Err: err}
	}
	return nil
}

// dialForwarded connects through QEMU, which accepts at once, also where nobody
// listens in the guest: such a connection ends without an answer.
func (t *tenancy) dialForwarded(ctx context.Context, port int) (net.Conn, error) {
	if port != t.shape.Port {
		return nil, &engine.Error{Op: "dial guest", Err: fmt.Errorf("%w: port %d of a machine that boots itself, %d alone is forwarded", engine.ErrRefused, port, t.shape.Port),
			Hint: "go through the guest server (guest.server.port)"}
	}
	return t.net.Dial(ctx, forwarded.String(), port)
}

// bounded requires what can be read of a machine's bounds from outside: QEMU is
// in its group. Vcpus and memory were read back as it started.
func (t *tenancy) bounded() error {
	of := t.limits.Read([]int{t.pid})
	have, known := of.Get()
	if !known {
		return &engine.Error{Op: "read back limits of machine", Err: fmt.Errorf("%w: %s", engine.ErrUnknown, of.Reason())}
	}
	if len(have.Outside) > 0 {
		return &engine.Error{Op: "read back limits of machine", Err: fmt.Errorf("processes %v are not in the limits group", have.Outside)}
	}
	return nil
}

// stays requires that a loaded machine does not run, and says that its clock is
// the one that it had.
func (t *tenancy) stays(ctx context.Context) error {
	status, err := t.status(ctx)
	if err != nil {
		return err
	}
	if !slices.Contains([]string{"paused", "prelaunch", "restore-vm"}, status) { // by how it was loaded
		return &engine.Error{Op: "hold machine", Err: fmt.Errorf("its status is %s, not one that does not run", status)}
	}
	for _, name := range []string{factSkew, factClockError} {
		t.facts = append(t.facts, engine.Unknown[int64](errSelf.Error(), engine.ViewGuest).Fact(name))
	}
	return nil
}

// unseen are the aspects that a dump asks for and nobody can see.
func unseen() (found []bench.Finding) {
	for _, a := range []engine.Aspect{engine.AspectMounts, engine.AspectNetwork, engine.AspectLocks, engine.AspectProcesses, engine.AspectState} {
		found = append(found, bench.Finding{Verdict: engine.VerdictUnknown, Subject: string(a), Text: "cannot be read: " + errSelf.Error(), Hint: selfHint})
	}
	return found
}
