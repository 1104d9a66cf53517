// Package netns reaches into a slot's network namespace from the host, and
// keeps one where the mechanism under test cannot.
//
// Always holds: a thread that has entered another namespace either came back or
// ends; it never runs other goroutines there.
package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/observe"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Handle keeps a network namespace by descriptor: it stays the same one even
// when the pid that it was opened through is used again.
type Handle struct{ f *os.File }

// Open opens the namespace at path, such as /proc/PID/ns/net.
func Open(path string) (*Handle, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	return &Handle{f}, nil
}

// Close lets the namespace go.
func (h *Handle) Close() error { return h.f.Close() }

// Fd is the namespace's descriptor, for calls that enter it.
func (h *Handle) Fd() int { return int(h.f.Fd()) }

// Network reads what the namespace holds.
func (h *Handle) Network() (bench.Network, error) {
	n, err := netlink.NewHandleAt(netns.NsHandle(h.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return bench.Network{}, fmt.Errorf("open a route socket in the namespace: %w", err)
	}
	defer n.Close()
	return observe.ReadNetwork(n)
}

// Dial connects to an IPv4 address and TCP port inside the namespace. A refused
// or reset connection is engine.ErrDead: nobody serves there.
func (h *Handle) Dial(ctx context.Context, address string, port int) (net.Conn, error) {
	ip, err := netip.ParseAddr(address)
	if err != nil || !ip.Is4() {
		return nil, fmt.Errorf("dial in namespace: %q is no IPv4 address", address)
	}
	fd, err := h.socket()
	if err != nil {
		return nil, fmt.Errorf("dial in namespace: %w", err)
	}
	// From here on the thread does not matter: a socket stays in the namespace that it was made in.
	if err := connect(ctx, fd, &unix.SockaddrInet4{Port: port, Addr: ip.As4()}); err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.ENETUNREACH) {
			err = fmt.Errorf("%w: %w", engine.ErrDead, err)
		}
		return nil, &engine.Error{Op: fmt.Sprintf("dial %s:%d in the slot", address, port), Err: err}
	}
	f := os.NewFile(uintptr(fd), "slot")
	defer f.Close() // FileConn has its own copy
	return net.FileConn(f)
}

// socket makes a TCP socket inside the namespace.
func (h *Handle) socket() (int, error) {
	type made struct {
		fd  int
		err error
	}
	done := make(chan made, 1)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			done <- made{err: err}
			return
		}
		defer home.Close()
		if err := unix.Setns(h.Fd(), unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			done <- made{err: err}
			return
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		// If the way back is barred the goroutine ends with its thread locked, and the runtime ends the thread.
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- made{fd, err}
	}()
	m := <-done
	return m.fd, m.err
}

func connect(ctx context.Context, fd int, to unix.Sockaddr) error {
	err := unix.Connect(fd, to)
	for errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EINTR) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		wait := 100 * time.Millisecond
		if d, ok := ctx.Deadline(); ok {
			wait = min(wait, max(time.Until(d), time.Millisecond))
		}
		n, perr := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(wait.Milliseconds()))
		if perr != nil && !errors.Is(perr, unix.EINTR) {
			return perr
		}
		if n == 0 {
			continue
		}
		code, serr := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if serr != nil {
			return serr
		}
		if code != 0 {
			return unix.Errno(code)
		}
		return nil
	}
	return err
}
