package procfs_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/arms/procfs/slottest"
	"github.com/drumsbench/drumsbench/arms/thread"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func enclosure(t *testing.T, s *slottest.Slot, o procfs.Options) []bench.Finding {
	t.Helper()
	fs, err := procfs.Enclosure(s.Init, o)
	if err != nil {
		t.Fatal(err)
	}
	return fs
}

// expect wants a finding that has each of the words in its subject or text, and a remedy.
func expect(t *testing.T, fs []bench.Finding, words ...string) {
	t.Helper()
next:
	for _, f := range fs {
		for _, w := range words {
			if !strings.Contains(f.Subject+" "+f.Text, w) {
				continue next
			}
		}
		if f.Hint == "" || f.Verdict != "fail" || f.Subject == "" {
			t.Errorf("finding without remedy, verdict or subject: %+v", f)
		}
		return
	}
	t.Errorf("no finding with %q in %+v", words, fs)
}

func expectNone(t *testing.T, fs []bench.Finding) {
	t.Helper()
	for _, f := range fs {
		t.Errorf("unexpected finding: %s: %s", f.Subject, f.Text)
	}
}

var repair = procfs.Options{Locks: "repair"}

// busy fills a slot with everything that is closed in itself.
func busy(s *slottest.Slot) {
	a := s.Spawn("a")
	a.Call("unix-listen", "/run/accepted")
	s.Call("unix-connect", "/run/accepted")
	a.Call("unix-accept")
	a.Call("unix-listen", "@pending")
	s.Call("unix-connect", "@pending")
	a.Call("unix-datagrams", "/run/datagrams")
	s.Call("unix-send", "/run/datagrams")
	a.Call("socketpair")
	a.Call("tcp-listen", "127.0.0.1:7000")
	a.Call("socket", "16", "3", "0") // netlink
	a.Call("socket", "2", "2", "0")  // udp
	a.Call("socket", "2", "3", "1")  // raw
	a.Call("socket", "2", "1", "0")  // tcp, not connected
	a.Call("pipe")
	a.Call("mkfifo", "/run/fifo")
	a.Call("open", "/run/fifo")
	a.Call("eventfd")
	a.Call("memfd")
	a.Call("segment")
	a.Call("pty")
	a.Call("pidfd")
	a.Call("nested")
	a.Call("zombie")
	a.Call("lock", "/run/locked", "posix")
	s.Call("lock", "/run/locked", "posix")
	a.Call("lock", "/root/flocked", "flock")
	a.Call("map", a.Call("open-read", "/drums-slottest"))
	a.Call("open-read", "/dev/urandom")
}

func TestEnclosureOfAClosedSlot(t *testing.T) {
	s := slottest.Start(t)
	busy(s)
	expectNone(t, enclosure(t, s, repair))
	s.Stop()
	expectNone(t, enclosure(t, s, procfs.Options{Locks: "criu", EstablishedTCP: "close"}))
	if states := strings.Trim(s.States(), "TZ"); states != "" {
		t.Errorf("looking at a stopped slot let it run: %s", states)
	}
}

// TestEnclosureFindsFaults plants one fault a case.
func TestEnclosureFindsFaults(t *testing.T) {
	hostFile := func(t *testing.T, f *os.File, err error) *os.File {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	raw := func(t *testing.T, fd int, err error) *os.File {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return hostFile(t, os.NewFile(uintptr(fd), "planted"), nil)
	}
	self := fmt.Sprintf("host pid %d", os.Getpid())
	cases := []struct {
		name string
		// plant makes the fault and returns the slot.
		plant   func(t *testing.T) *slottest.Slot
		options procfs.Options
		want    [][]string
	}{
		{name: "unix peer outside, by a shared path", plant: func(t *testing.T) *slottest.Slot {
			dir := t.TempDir()
			l, err := net.Listen("unix", filepath.Join(dir, "bus"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
			s := slottest.Start(t, slottest.WithBind(dir))
			s.Call("unix-connect", "/shared/bus")
			c, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			return s
		}, want: [][]string{{"pid 1 (", "fd ", "peer outside", self}}},
		{name: "unix datagrams to a server outside", plant: func(t *testing.T) *slottest.Slot {
			dir := t.TempDir()
			l, err := net.ListenPacket("unixgram", filepath.Join(dir, "log"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
			s := slottest.Start(t, slottest.WithBind(dir))
			s.Call("unix-send", "/shared/log")
			return s
		}, want: [][]string{{"pid 1 (", "fd ", "peer outside", self}}},
		{name: "half-open unix socket", plant: func(t *testing.T) *slottest.Slot {
			s := slottest.Start(t)
			s.Spawn("a").Call("socketpair", "half")
			return s
		}, want: [][]string{{"half-open", "fd "}}},
		{name: "open TCP connection", plant: func(t *testing.T) *slottest.Slot {
			s := slottest.Start(t)
			s.Call("tcp-listen", "127.0.0.1:7000")
			s.Call("tcp-connect", "127.0.0.1:7000")
			return s
		}, want: [][]string{{"pid 1 (", "fd ", "TCP connection", "ESTAB"}, {"wait to be accepted"}}},
		{name: "pending TCP connection is no matter of the policy", plant: func(t *testing.T) *slottest.Slot {
			s := slottest.Start(t)
			s.Call("tcp-pending")
			return s
		}, options: procfs.Options{EstablishedTCP: "close", Locks: "repair"}, want: [][]string{{"pid 1 (", "fd ", "wait to be accepted"}}},
		{name: "client of the host is still connected", plant: func(t *testing.T) *slottest.Slot {
			s := slottest.Start(t)
			s.Call("tcp-listen", "127.0.0.1:7000")
			c := dialInside(t, s, "127.0.0.1:7000")
			t.Cleanup(func() { c.Close() })
			s.Call("tcp-accept")
			return s
		}, want: [][]string{{self, "holds a TCP connection"}, {"pid 1 (", "TCP connection", "ESTAB"}}},
		{name: "multipath TCP", plant: func(t *testing.T) *slottest.Slot {
			s := slottest.Start(t)
			s.Call("socket", "2", "1", "262")
			return s
		}, want: [][]string{{"pid 1 (", "fd ", "multipath"}}},
		{name: "socket of the host's network", plant: func(t *testing.T) *slottest.Slot {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
			return slottest.Start(t, slottest.WithFile(raw(t, fd, err)))
		}, want: [][]string{{"pid 1 (", "fd 3", "network namespace"}, {"fd 3", "also held outside", self}}},
		{name: "address family without an image", plant: func(t *testing.T) *slottest.Slot {
			s := slottest.Start(t)
			s.Call("socket-odd")
			return s
		}, want: [][]string{{"pid 1 (", "fd ", "address family "}}},
		{name: "file of the host", plant: func(t *testing.T) *slottest.Slot {
			f, err := os.Create(filepath.Join(t.TempDir(), "outside"))
			return slottest.Start(t, slottest.WithFile(hostFile(t, f, err)))
		}, want: [][]string{{"pid 1 (", "fd 3", "outside", "the host's mount"}}},
		{name: "mapped file of the host", plant: func(t *testing.T) *slottest.Slot {
			f, err := os.Create(filepath.Join(t.TempDir(), "outside"))
			hostFile(t, f, err)
			if err := f.Truncate(4096); err != nil {
				t.Fatal(err)
			}
			s := slottest.Start(t, slottest.WithFile(f))
			s.Call("map", "3")
			s.Call("close", "3")
			return s
		}, want: [][]string{{"pid 1 (", "mapped file", "/outside", "the host's mount"}}},
		{name: "working directory of the host", plant: func(t *testing.T) *slottest.Slot {
			f, err := os.Open(t.TempDir())
			s := slottest.Start(t, slottest.WithFile(hostFile(t, f, err)))
			s.Call("fchdir", "3")
			s.Call("close", "3")
			return s
		}, want: [][]string{{"pid 1 (", "cwd is on the host's mount"}}},
		{name: "file of a mount that is gone", plant: func(t *testing.T) *slottest.Slot {
			s := slottest.Start(t)
			s.Call("lost-mount")
			return s
		}, want: [][]string{{"pid 1 (", "fd ", "open file /file", "unmounted"}}},
		{name: "pipe to the outside", plant: func(t *testing.T) *slottest.Slot {
			r, w, err := os.Pipe()
			hostFile(t, r, err)
			s := slottest.Start(t, slottest.WithFile(w))
			w.Close()
			return s
		}, want: [][]string{{"pid 1 (", "fd 3", "pipe:[", self}}},
		{name: "fifo that is open outside", plant: func(t *testing.T) *slottest.Slot {
			s := slottest.Start(t)
			s.Call("mkfifo", "/run/fifo")
			s.Call("open", "/run/fifo")
			f, err := os.OpenFile(s.Path("/run/fifo"), os.O_RDWR, 0)
			hostFile(t, f, err)
			return s
		}, want: [][]string{{"pid 1 (", "fd ", "/run/fifo", self}}},
		{name: "eventfd of the host", plant: func(t *testing.T) *slottest.Slot {
			fd, err := unix.Eventfd(0, 0)
			return slottest.Start(t, slottest.WithFile(raw(t, fd, err)))
		}, want: [][]string{{"pid 1 (", "fd 3", "eventfd", self}}},
		{name: "epoll of the host", plant: func(t *testing.T) *slottest.Slot {
			fd, err := unix.EpollCreate1(0)
			return slottest.Start(t, slottest.WithFile(raw(t, fd, err)))
		}, want: [][]string{{"pid 1 (", "fd 3", "eventpoll", self}}},
		{name: "memfd of the host", plant: func(t *testing.T) *slottest.Slot {
			fd, err := unix.MemfdCreate("drums", 0)
			return slottest.Start(t, slottest.WithFile(raw(t, fd, err)))
		}, want: [][]string{{"pid 1 (", "fd 3", "/memfd:drums", self}}},
		{name: "pidfd of a process of the host", plant: func(t *testing.T) *slottest.Slot {
			fd, err := unix.PidfdOpen(os.Getppid(), 0)
			return slottest.Start(t, slottest.WithFile(raw(t, fd, err)))
		}, want: [][]string{{"pid 1 (", "fd 3", "pidfd of", fmt.Sprintf("host pid %d", os.Getppid())}}},
		{name: "io_uring", plant: func(t *testing.T) *slottest.Slot {
			s := slottest.Start(t)
			s.Call("uring")
			return s
		}, want: [][]string{{"pid 1 (", "fd ", "io_uring"}}},
		{name: "character device", plant: func(t *testing.T) *slottest.Slot {
			s := slottest.Start(t)
			s.Call("mknod", "/dev/fuse", "c", "10", "229")
			s.Call("open", "/dev/fuse")
			return s
		}, want: [][]string{{"pid 1 (", "fd ", "character device /dev/fuse (10:229)"}}},
		{name: "block device", plant: func(t *testing.T) *slottest.Slot {
			s := slottest.Start(t)
			s.Call("mknod", "/dev/disk", "b", "7", blockDevice(t))
			t.Cleanup(s.Kill) // before the device is detached
			s.Call("open-read", "/dev/disk")
			return s
		}, want: [][]string{{"pid 1 (", "fd ", "block device /dev/disk"}}},
		{name: "terminal whose master is outside", plant: func(t *testing.T) *slottest.Slot {
			s := slottest.Start(t)
			fd, err := unix.Open(s.Path("/dev/pts/ptmx"), unix.O_RDWR|unix.O_NOCTTY, 0)
			raw(t, fd, err)
			n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
			if err == nil {
				err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
			}
			if err != nil {
				t.Fatal(err)
			}
			s.Call("slave", fmt.Sprintf("/dev/pts/%d", n))
			return s
		}, want: [][]string{{"pid 1 (", "fd ", "master side", "/dev/pts/"}}},
		{name: "POSIX lock outside on a locked file", plant: func(t *testing.T) *slottest.Slot {
			s := slottest.Start(t)
			s.Call("lock", "/run/locked", "posix")
			f, err := os.OpenFile(s.Path("/run/locked"), os.O_RDWR, 0)
			hostFile(t, f, err)
			if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_RDLCK, Start: 100, Len: 1}); err != nil {
				t.Fatal(err)
			}
			return s
		}, want: [][]string{{"pid 1 (", "/run/locked", self, "holds a POSIX READ lock on bytes 100 to 100"}}},
		{name: "waiter outside", plant: func(t *testing.T) *slottest.Slot {
			s := slottest.Start(t)
			fd := s.Call("lock", "/run/locked", "posix")
			f, err := os.OpenFile(s.Path("/run/locked"), os.O_RDWR, 0)
			hostFile(t, f, err)
			done := make(chan error, 1)
			go func() {
				done <- unix.FcntlFlock(f.Fd(), unix.F_SETLKW, &unix.Flock_t{Type: unix.F_WRLCK, Start: 5, Len: 1})
			}()
			t.Cleanup(func() {
				s.Call("unlock", fd)
				<-done
			})
			waitFor(t, func() bool {
				text, err := os.ReadFile("/proc/locks")
				return err == nil && strings.Contains(string(text), fmt.Sprintf("-> POSIX  ADVISORY  WRITE %d ", os.Getpid()))
			})
			return s
		}, want: [][]string{{"pid 1 (", "/run/locked", self, "waits for a POSIX WRITE lock on bytes 5 to 5"}}},
		{name: "flock outside on an open file", plant: func(t *testing.T) *slottest.Slot {
			s := slottest.Start(t)
			s.Call("open", "/root/flocked")
			f, err := os.OpenFile(s.Path("/root/flocked"), os.O_RDWR, 0)
			hostFile(t, f, err)
			if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
				t.Fatal(err)
			}
			return s
		}, want: [][]string{{"pid 1 (", "/root/flocked", self, "FLOCK WRITE"}}},
		{name: "POSIX lock outside on an open file", plant: func(t *testing.T) *slottest.Slot {
			s := slottest.Start(t)
			s.Call("open", "/root/plain")
			f, err := os.OpenFile(s.Path("/root/plain"), os.O_RDWR, 0)
			hostFile(t, f, err)
			if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: 3}); err != nil {
				t.Fatal(err)
			}
			return s
		}, want: [][]string{{"pid 1 (", "/root/plain", self, "POSIX WRITE lock on bytes 3 to the end"}}},
		{name: "lease", plant: func(t *testing.T) *slottest.Slot {
			s := slottest.Start(t)
			s.Call("lock", "/run/leased", "lease")
			return s
		}, want: [][]string{{"pid 1 (", "/run/leased", "lease is held"}}},
		{name: "held lock where the setting is refuse", plant: func(t *testing.T) *slottest.Slot {
			s := slottest.Start(t)
			s.Call("lock", "/run/locked", "posix")
			return s
		}, options: procfs.Options{Locks: "refuse"}, want: [][]string{{"pid 1 (", "/run/locked", "POSIX READ lock on bytes 5 to 14 is held"}}},
		{name: "traced task", plant: func(t *testing.T) *slottest.Slot {
			s := slottest.Start(t)
			s.Spawn("a")
			trace(t, s.Pids()[1])
			return s
		}, want: [][]string{{"pid ", "is traced by", self}}},
		{name: "session and group leader outside", plant: func(t *testing.T) *slottest.Slot {
			return slottest.Start(t, slottest.WithForeignSession())
		}, want: [][]string{{"pid 1 (", "session leader is outside"}, {"pid 1 (", "group leader is outside"}}},
		{name: "joined process", plant: func(t *testing.T) *slottest.Slot {
			s := slottest.Start(t)
			join(t, s, "pid", "net")
			return s
		}, want: [][]string{{"(sleep)", "no descendant", self}, {"(sleep)", "host's mnt namespace"}}},
		{name: "process outside in the slot's network", plant: func(t *testing.T) *slottest.Slot {
			s := slottest.Start(t)
			join(t, s, "net")
			return s
		}, want: [][]string{{"host pid ", "(sleep)", "in its net namespace"}}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := c.plant(t)
			o := c.options
			if o.Locks == "" {
				o.Locks = "repair"
			}
			fs := enclosure(t, s, o)
			for _, f := range fs {
				t.Logf("%s: %s (%s)", f.Subject, f.Text, f.Hint)
			}
			for _, words := range c.want {
				expect(t, fs, words...)
			}
		})
	}
}

func TestEnclosurePolicies(t *testing.T) {
	s := slottest.Start(t)
	s.Call("tcp-listen", "127.0.0.1:7000")
	a := s.Spawn("a")
	a.Call("tcp-connect", "127.0.0.1:7000")
	s.Call("tcp-accept")
	s.Call("lock", "/run/locked", "posix")
	fs := enclosure(t, s, procfs.Options{})
	expect(t, fs, "TCP connection", "ESTAB")
	expect(t, fs, "POSIX READ lock")
	expectNone(t, enclosure(t, s, procfs.Options{EstablishedTCP: "close", Locks: "criu"}))
	pid := join(t, s, "net")
	expectNone(t, enclosure(t, s, procfs.Options{EstablishedTCP: "close", Locks: "repair", Holders: []int{pid}}))
	if _, err := procfs.Enclosure(os.Getpid(), repair); err == nil {
		t.Error("a process that is no pid 1 was taken for a slot")
	}
}

func enter(s *slottest.Slot, kind string) error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", s.Init, kind))
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Setns(int(f.Fd()), 0)
}

// join starts a sleeping process outside the slot's tree that is in some of its namespaces, as nsenter does, and returns its host pid.
func join(t *testing.T, s *slottest.Slot, kinds ...string) int {
	t.Helper()
	var c *exec.Cmd
	err := thread.Run(func() error {
		for _, k := range kinds {
			if err := enter(s, k); err != nil {
				return err
			}
		}
		c = exec.Command("/bin/sleep", "1000")
		return c.Start()
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
	})
	return c.Process.Pid
}

func dialInside(t *testing.T, s *slottest.Slot, address string) net.Conn {
	t.Helper()
	var c net.Conn
	err := thread.Run(func() error {
		if err := enter(s, "net"); err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		to, err := net.ResolveTCPAddr("tcp", address)
		if err != nil {
			return err
		}
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: to.Port, Addr: [4]byte(to.IP.To4())}); err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), "inside")
		defer f.Close()
		c, err = net.FileConn(f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// trace holds a process by ptrace until the test ends.
func trace(t *testing.T, pid int) {
	t.Helper()
	seized, release, released := make(chan error), make(chan struct{}), make(chan struct{})
	go thread.Run(func() error {
		defer close(released)
		seized <- unix.PtraceSeize(pid)
		<-release
		return unix.PtraceDetach(pid)
	})
	if err := <-seized; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		close(release)
		<-released
	})
}

func waitFor(t *testing.T, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for !cond() {
		if ctx.Err() != nil {
			t.Fatal("waited in vain")
		}
		time.Sleep(2 * time.Millisecond)
	}
}
