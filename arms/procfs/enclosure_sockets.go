package procfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/observe"
)

const (
	hintPeer = "connect only to servers inside the slot, and start clients as children of its pid 1"
	hintHalf = "close the socket before the checkpoint: a restore of it hangs (gvfsd does this: GIO_USE_VFS=local)"
	hintTCP  = "close the connection before the checkpoint, or set checkpoint.establishedTCP to close"
)

// socket is what the kernel says of a slot's socket, asked through a copy of its descriptor.
type socket struct {
	Descriptor
	ino              uint64
	domain, protocol int
	network          Namespace
	raw              bool
	// state and backlog of a TCP socket.
	state, backlog int
}

func (e *enclosure) checkSockets() error {
	e.networks = map[Namespace]*os.File{}
	defer func() {
		for _, f := range e.networks {
			f.Close()
		}
	}()
	for _, t := range e.tasks {
		if err := e.openNetwork(t); err != nil {
			return err
		}
	}
	sockets, err := e.readSockets()
	if err != nil {
		return err
	}
	ours := map[uint64]bool{}
	for _, s := range sockets {
		ours[s.ino] = true
	}
	unixes := map[uint64]observe.UnixSocket{}
	pending := map[uint64]bool{}
	for _, f := range e.networks {
		list, err := unixSockets(f)
		if err != nil {
			return err
		}
		for _, u := range list {
			unixes[uint64(u.Ino)] = u
			for _, ino := range u.Pending {
				pending[uint64(ino)] = true
			}
		}
		if err := e.checkHeldOutside(f, ours); err != nil {
			return err
		}
	}
	for _, s := range sockets {
		if e.networks[s.network] == nil {
			e.add(e.subject(s.Descriptor), fmt.Sprintf("%s belongs to a network namespace that no process of the slot is in", s.Link), "create it inside the slot, and close every inherited descriptor before the slot's first program starts")
			continue
		}
		switch s.domain {
		case unix.AF_UNIX:
			u, ok := unixes[s.ino]
			if !ok {
				return fmt.Errorf("%w: %s %s is in no socket table of the slot", engine.ErrUnknown, e.subject(s.Descriptor), s.Link)
			}
			e.checkUnix(s, u, ours, pending)
		case unix.AF_INET, unix.AF_INET6:
			e.checkInet(s)
		case unix.AF_PACKET, unix.AF_NETLINK:
		default:
			e.add(e.subject(s.Descriptor), fmt.Sprintf("socket of address family %d", s.domain), hintDump)
		}
	}
	return nil
}

// openNetwork opens a task's network namespace, once for each namespace.
func (e *enclosure) openNetwork(t Task) error {
	if t.Zombie() {
		return nil
	}
	ns, err := NamespaceOf(t.Pid, "net")
	if err == nil && e.networks[ns] == nil {
		var f *os.File
		f, err = os.Open(fmt.Sprintf("%s/%d/ns/net", root, t.Pid))
		if err == nil {
			e.networks[ns] = f
		}
	}
	if (vanished(err) || errors.Is(err, engine.ErrDead)) && t.Pid != e.init {
		return nil
	}
	return err
}

// checkUnix judges one unix socket:
//
//	peer in the slot            closed in itself
//	peer elsewhere              tied to the outside
//	ESTAB, peer 0, pending      waits to be accepted by a listener of the slot: CRIU knows that
//	ESTAB, peer 0               half-open: its peer is gone
//	a datagram socket, peer 0   nothing: the kernel calls a server ESTAB once somebody has connected to it
func (e *enclosure) checkUnix(s socket, u observe.UnixSocket, ours, pending map[uint64]bool) {
	name := s.Link
	if u.Name != "" {
		name += " " + u.Name
	}
	switch {
	case u.Peer != 0 && !ours[uint64(u.Peer)]:
		link := fmt.Sprintf("socket:[%d]", u.Peer)
		who := "a socket that no visible process holds"
		if hs := e.outside.links[link]; len(hs) > 0 {
			who = e.strangers(hs)
		}
		e.add(e.subject(s.Descriptor), fmt.Sprintf("unix socket %s has a peer outside the slot: %s, %s", name, link, who), hintPeer)
	case u.Type != unix.SOCK_DGRAM && u.State == observe.SocketEstablished && u.Peer == 0 && !pending[s.ino]:
		e.add(e.subject(s.Descriptor), fmt.Sprintf("unix socket %s is half-open: established, but its peer is gone", name), hintHalf)
	}
}

// ipprotoMPTCP is not in CRIU; Go's listeners use it by default.
const ipprotoMPTCP = 262

func (e *enclosure) checkInet(s socket) {
	switch s.protocol {
	case unix.IPPROTO_TCP:
		switch s.state {
		case observe.SocketClosed:
		case observe.SocketListening:
			if s.backlog > 0 {
				e.add(e.subject(s.Descriptor), fmt.Sprintf("TCP listener %s has %d connections that wait to be accepted", s.Link, s.backlog), "let the server accept them, or the clients give up, before the checkpoint")
			}
		default:
			if e.options.EstablishedTCP != "close" {
				e.add(e.subject(s.Descriptor), fmt.Sprintf("TCP connection %s is open (%s)", s.Link, tcpState(s.state)), hintTCP)
			}
		}
	case unix.IPPROTO_UDP, unix.IPPROTO_UDPLITE:
	case ipprotoMPTCP:
		e.add(e.subject(s.Descriptor), fmt.Sprintf("multipath TCP socket %s", s.Link), "CRIU has no image for it: use plain TCP (Go: GODEBUG=multipathtcp=0 or ListenConfig.SetMultipathTCP(false))")
	default:
		if !s.raw { // CRIU dumps raw sockets of any protocol
			e.add(e.subject(s.Descriptor), fmt.Sprintf("socket %s of protocol %d", s.Link, s.protocol), hintDump)
		}
	}
}

func tcpState(n int) string {
	names := []string{"", "ESTAB", "SYN-SENT", "SYN-RECV", "FIN-WAIT-1", "FIN-WAIT-2", "TIME-WAIT", "CLOSE", "CLOSE-WAIT", "LAST-ACK", "LISTEN", "CLOSING"}
	if n > 0 && n < len(names) {
		return names[n]
	}
	return strconv.Itoa(n)
}

// readSockets asks each socket of the slot once, by its inode, through a copy of the descriptor that is closed at once.
func (e *enclosure) readSockets() ([]socket, error) {
	duplicates.Lock()
	defer duplicates.Unlock()
	var out []socket
	seen := map[string]bool{}
	for _, d := range e.fds {
		if !strings.HasPrefix(d.Link, "socket:[") || seen[d.Link] {
			continue
		}
		s, err := readSocket(d)
		if isClosed(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read %s %s: %w", e.subject(d), d.Link, err)
		}
		seen[d.Link] = true
		out = append(out, s)
	}
	return out, nil
}

// isClosed says that the descriptor or process went away under us.
func isClosed(err error) bool { return errors.Is(err, unix.EBADF) || errors.Is(err, unix.ESRCH) }

func readSocket(d Descriptor) (socket, error) {
	s := socket{Descriptor: d}
	var err error
	if s.ino, err = strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(d.Link, "socket:["), "]"), 10, 64); err != nil {
		return s, err
	}
	pidfd, err := unix.PidfdOpen(d.Pid, 0)
	if err != nil {
		return s, err
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, d.FD, 0)
	if err != nil {
		return s, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return s, err
	}
	if st.Ino != s.ino { // the number was used again
		return s, unix.EBADF
	}
	if s.domain, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil {
		return s, err
	}
	if s.protocol, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil {
		return s, err
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return s, err
	}
	s.raw = kind == unix.SOCK_RAW
	if (s.domain == unix.AF_INET || s.domain == unix.AF_INET6) && s.protocol == unix.IPPROTO_TCP && !s.raw {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return s, err
		}
		s.state = int(info.State)
		if s.state == observe.SocketListening {
			s.backlog = int(info.Unacked) // of a listener: the accept queue (tcp_get_info)
		}
	}
	ns, err := unix.IoctlRetInt(fd, unix.SIOCGSKNS)
	if err != nil {
		return s, fmt.Errorf("ask for its network namespace: %w", err)
	}
	defer unix.Close(ns)
	if err := unix.Fstat(ns, &st); err != nil {
		return s, err
	}
	s.network = Namespace{st.Dev, st.Ino}
	return s, nil
}

// checkHeldOutside finds ends of TCP connections in a slot's network that a process outside holds: a client of the host that is still connected.
func (e *enclosure) checkHeldOutside(network *os.File, ours map[uint64]bool) error {
	if e.options.EstablishedTCP == "close" {
		return nil
	}
	return inNetwork(network, func() error {
		h, err := netlink.NewHandle(unix.NETLINK_INET_DIAG)
		if err != nil {
			return fmt.Errorf("list connections: %w", err)
		}
		defer h.Close()
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			list, err := retry(func() ([]*netlink.Socket, error) { return h.SocketDiagTCP(family) })
			if err != nil {
				return fmt.Errorf("list connections: %w", err)
			}
			for _, s := range list {
				if s.INode == 0 || s.State == observe.SocketListening || ours[uint64(s.INode)] {
					continue // without an inode it waits to be accepted, or is on its way out
				}
				who := "a process that is not visible"
				if hs := e.outside.links[fmt.Sprintf("socket:[%d]", s.INode)]; len(hs) > 0 {
					who = e.strangers(hs)
				}
				e.add(who, fmt.Sprintf("holds a TCP connection in the slot's network, %s:%d to %s:%d (%s)", s.ID.Source, s.ID.SourcePort, s.ID.Destination, s.ID.DestinationPort, tcpState(int(s.State))), hintTCP)
			}
		}
		return nil
	})
}

// retry repeats a dump of a kernel table that changed meanwhile.
func retry[T any](dump func() (T, error)) (T, error) {
	for i := 0; ; i++ {
		v, err := dump()
		if !errors.Is(err, netlink.ErrDumpInterrupted) || i == 10 {
			return v, err
		}
	}
}

// unixRequest is struct unix_diag_req for all sockets. netlink.UnixSocketDiagInfo leaves out who waits to be accepted.
type unixRequest struct{}

func (unixRequest) Len() int { return 24 }

func (r unixRequest) Serialize() []byte {
	b := make([]byte, r.Len())
	b[0] = unix.AF_UNIX
	binary.NativeEndian.PutUint32(b[4:], ^uint32(0))
	binary.NativeEndian.PutUint32(b[12:], observe.UnixDiagShow)
	return b
}

// unixSockets lists the unix sockets of a network namespace.
func unixSockets(network *os.File) ([]observe.UnixSocket, error) {
	var out []observe.UnixSocket
	err := inNetwork(network, func() error {
		socket, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_INET_DIAG)
		if err != nil {
			return fmt.Errorf("list unix sockets: %w", err)
		}
		defer socket.Close()
		msgs, err := retry(func() ([][]byte, error) {
			req := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
			req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_INET_DIAG: {Socket: socket}}
			req.AddData(unixRequest{})
			return req.Execute(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY)
		})
		if err != nil {
			return fmt.Errorf("list unix sockets: %w", err)
		}
		for _, m := range msgs {
			u, err := observe.ParseUnixDiag(m)
			if err != nil {
				return err
			}
			out = append(out, u)
		}
		return nil
	})
	return out, err
}
