package observe

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// Socket states, as the kernel uses them for TCP and for unix sockets alike (net/tcp_states.h).
const (
	SocketEstablished = 1
	SocketClosed      = 7
	SocketListening   = 10
)

// UnixSocket is one answer of the unix socket monitoring of sock_diag(7).
type UnixSocket struct {
	// Type is SOCK_STREAM, SOCK_DGRAM or SOCK_SEQPACKET.
	Type int
	// State is a Socket constant.
	State int
	// Ino is the number in "socket:[N]"; 0 for a socket that nobody has opened or accepted.
	Ino uint32
	// Connected says that the socket has a peer; Peer is its inode, and 0 when
	// the peer is closed or was not accepted yet.
	Connected bool
	Peer      uint32
	// Name is the address: a path, or "@name" for an abstract one; empty if unnamed.
	Name string
	// Pending are the inodes of the clients that wait to be accepted by this listener.
	Pending []uint32
}

// Attribute types of linux/unix_diag.h.
const (
	unixDiagName  = 0
	unixDiagPeer  = 2
	unixDiagIcons = 3
)

// UnixDiagShow are the parts that a request must ask for (UDIAG_SHOW_NAME, PEER, ICONS).
const UnixDiagShow = 1<<unixDiagName | 1<<unixDiagPeer | 1<<unixDiagIcons

// unixDiagHeader is the size of struct unix_diag_msg.
const unixDiagHeader = 16

// ParseUnixDiag reads one unix_diag message without its netlink header.
func ParseUnixDiag(msg []byte) (UnixSocket, error) {
	if len(msg) < unixDiagHeader {
		return UnixSocket{}, fmt.Errorf("parse unix_diag: %w: %d bytes", ErrFormat, len(msg))
	}
	order := binary.NativeEndian
	s := UnixSocket{Type: int(msg[1]), State: int(msg[2]), Ino: order.Uint32(msg[4:])}
	for rest := msg[unixDiagHeader:]; len(rest) >= 4; {
		size, kind := int(order.Uint16(rest)), order.Uint16(rest[2:])
		if size < 4 || size > len(rest) {
			return UnixSocket{}, fmt.Errorf("parse unix_diag: %w: attribute of %d bytes in %d", ErrFormat, size, len(rest))
		}
		value := rest[4:size]
		switch kind {
		case unixDiagName:
			name := string(value)
			if strings.HasPrefix(name, "\x00") {
				name = "@" + name[1:]
			}
			s.Name = strings.TrimRight(name, "\x00")
		case unixDiagPeer:
			if len(value) < 4 {
				return UnixSocket{}, fmt.Errorf("parse unix_diag: %w: peer of %d bytes", ErrFormat, len(value))
			}
			s.Connected, s.Peer = true, order.Uint32(value)
		case unixDiagIcons:
			for ; len(value) >= 4; value = value[4:] {
				s.Pending = append(s.Pending, order.Uint32(value))
			}
		}
		rest = rest[min((size+3)&^3, len(rest)):]
	}
	return s, nil
}
