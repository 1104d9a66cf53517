package qemu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/initrd"
	"github.com/drumsbench/drumsbench/arms/thread"
	"github.com/drumsbench/drumsbench/engine"
)

// The machine's network card hangs on a tap device in a network namespace that
// QEMU alone is in: it leads nowhere, every slot has the same addresses in its
// own, no port of the host is taken, and a refused connection is refused.
const (
	tapName = "drums0"
	// cardMAC is the guest's card, tapMAC the host's end.
	cardMAC = "52:54:00:12:34:56"
	tapMAC  = "52:54:00:12:34:55"
	// guestAddress is the address part of initrd.Address.
	guestAddress = "10.0.2.15"
	hostAddress  = initrd.Gateway + "/24"
)

// openTap makes the tap device in the calling thread's network namespace, which
// is new, and brings it up. The device goes with its descriptor.
func openTap() (_ *os.File, err error) {
	const op = "make link of machine"
	fail := func(err error) (*os.File, error) {
		return nil, &engine.Error{Op: op, Err: err, Hint: "drumsbench doctor tries it"}
	}
	// No address that configures itself, on either end: nothing but the engine speaks on this link.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0o644); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fail(err)
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fail(&os.PathError{Op: "open", Path: "/dev/net/tun", Err: err})
	}
	f := os.NewFile(uintptr(fd), "tap")
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	request, err := unix.NewIfreq(tapName)
	if err != nil {
		return fail(err)
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return fail(fmt.Errorf("make tap device: %w", err))
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fail(err)
	}
	defer h.Close()
	link, err := h.LinkByName(tapName)
	if err != nil {
		return fail(err)
	}
	ours, _ := net.ParseMAC(tapMAC)
	theirs, _ := net.ParseMAC(cardMAC)
	address, err := netlink.ParseAddr(hostAddress)
	if err != nil {
		return fail(err)
	}
	if err = errors.Join(
		h.LinkSetHardwareAddr(link, ours),
		h.AddrAdd(link, address),
		h.LinkSetUp(link),
		// Nobody asks who has the guest's address: an answer would be waited for a second.
		h.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT, IP: net.ParseIP(guestAddress), HardwareAddr: theirs}),
	); err != nil {
		return fail(err)
	}
	return f, nil
}

// ProbeLink makes a machine's link in a network namespace that ends with it.
func ProbeLink() error {
	return thread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare network: %w", err)
		}
		tap, err := openTap()
		if err != nil {
			return err
		}
		return tap.Close()
	})
}

// dialTry is how long one attempt to connect may take. A packet that the guest
// was not there for is lost, and the kernel sends it again after a second only.
const dialTry = 50 * time.Millisecond

// dial connects to a port of the guest, as long as ctx lasts and the machine lives.
func (t *tenancy) dial(ctx context.Context, port int) (net.Conn, error) {
	if t.self {
		return t.dialForwarded(ctx, port)
	}
	for try := dialTry; ; try = min(2*try, time.Second) {
		once, cancel := context.WithTimeout(ctx, try)
		conn, err := t.net.Dial(once, guestAddress, port)
		cancel()
		if err == nil {
			return conn, nil
		}
		if ctx.Err() != nil {
			return nil, &engine.Error{Op: "dial guest", Err: context.Cause(ctx)}
		}
		if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, unix.EHOSTUNREACH) {
			return nil, err
		}
		if ended, eerr := t.ended(); ended || eerr != nil {
			return nil, &engine.Error{Op: "dial guest", Err: errors.Join(engine.ErrDead, eerr)}
		}
	}
}
