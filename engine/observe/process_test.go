package observe

import (
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

const statusText = "Name:\tweb\\nserver\nUmask:\t0022\nState:\tt (tracing stop)\nTgid:\t812\nNgid:\t0\nPid:\t812\nPPid:\t800\nTracerPid:\t77\n" +
	"Uid:\t0\t1\t2\t4294967294\nGid:\t3\t4\t5\t6\nFDSize:\t64\nGroups:\t7 9 \nNStgid:\t812\t7\t1\nNSpid:\t812\t7\t1\nNSpgid:\t812\t7\t1\nNSsid:\t0\t0\t0\n" +
	"Threads:\t4\nSeccomp:\t2\n"

func TestParseStatus(t *testing.T) {
	want := Status{
		Name: `web\nserver`, State: 't', Tgid: 812, Pid: 812, PPid: 800, TracerPid: 77,
		Uids: [4]int64{0, 1, 2, 4294967294}, Gids: [4]int64{3, 4, 5, 6}, Groups: []int64{7, 9},
		NStgid: []int{812, 7, 1}, NSpid: []int{812, 7, 1}, NSpgid: []int{812, 7, 1}, NSsid: []int{0, 0, 0}, Threads: 4, Seccomp: 2,
	}
	have, err := ReadStatus(fstest.MapFS{"812/status": {Data: []byte(statusText)}}, 812)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, have); d != "" {
		t.Error(d)
	}
	for _, line := range strings.SplitAfter(statusText, "\n") {
		key, _, _ := strings.Cut(line, ":")
		switch key {
		case "", "Umask", "Ngid", "FDSize", "Seccomp":
			continue
		}
		if _, err := ParseStatus(strings.NewReader(strings.Replace(statusText, line, "", 1))); !errors.Is(err, ErrFormat) {
			t.Errorf("without %s: %v", key, err)
		}
		if key == "Name" || key == "State" {
			continue
		}
		if _, err := ParseStatus(strings.NewReader(strings.Replace(statusText, line, key+":\t-1\tx\n", 1))); !errors.Is(err, ErrFormat) {
			t.Errorf("with a bad %s: %v", key, err)
		}
	}
}

func TestStatusOfThisProcess(t *testing.T) {
	s, err := ReadStatus(os.DirFS("/proc"), os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if s.Pid != os.Getpid() || s.PPid != os.Getppid() || s.Uids[1] != int64(os.Geteuid()) || s.Threads < 1 {
		t.Errorf("%+v", s)
	}
}

// unixDiag builds a message as the kernel does.
func unixDiag(kind, state byte, ino uint32, attrs ...[]byte) []byte {
	m := make([]byte, unixDiagHeader)
	m[0], m[1], m[2] = 1, kind, state
	binary.NativeEndian.PutUint32(m[4:], ino)
	for i := 0; i < len(attrs); i += 2 {
		head := make([]byte, 4)
		binary.NativeEndian.PutUint16(head, uint16(4+len(attrs[i+1])))
		binary.NativeEndian.PutUint16(head[2:], uint16(attrs[i][0]))
		m = append(append(m, head...), attrs[i+1]...)
		for len(m)%4 != 0 {
			m = append(m, 0)
		}
	}
	return m
}

func TestParseUnixDiag(t *testing.T) {
	number := func(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
	for _, c := range []struct {
		msg  []byte
		want UnixSocket
	}{
		{unixDiag(1, SocketEstablished, 5, []byte{unixDiagPeer}, number(6)), UnixSocket{Type: 1, State: SocketEstablished, Ino: 5, Connected: true, Peer: 6}},
		{unixDiag(1, SocketEstablished, 5, []byte{unixDiagPeer}, number(0), []byte{unixDiagName}, []byte("\x00bus")), UnixSocket{Type: 1, State: SocketEstablished, Ino: 5, Connected: true, Name: "@bus"}},
		{unixDiag(2, SocketClosed, 4294967295, []byte{unixDiagName}, []byte("/run/a\x00")), UnixSocket{Type: 2, State: SocketClosed, Ino: 4294967295, Name: "/run/a"}},
		{unixDiag(1, SocketListening, 5, []byte{unixDiagIcons}, append(number(8), number(9)...), []byte{99}, []byte("x")), UnixSocket{Type: 1, State: SocketListening, Ino: 5, Pending: []uint32{8, 9}}},
	} {
		have, err := ParseUnixDiag(c.msg)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(c.want, have); d != "" {
			t.Error(d)
		}
	}
	for _, bad := range [][]byte{nil, make([]byte, 15), append(make([]byte, 16), 200, 0, 2, 0), append(make([]byte, 16), 3, 0, 2, 0), append(make([]byte, 16), 6, 0, 2, 0, 1, 1)} {
		if _, err := ParseUnixDiag(bad); !errors.Is(err, ErrFormat) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}
