package procfs_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/procfs/slottest"
)

// kept stays open until the agent ends.
var kept []any

func keep(v any, err error) (string, error) {
	kept = append(kept, v)
	return "", err
}

// number keeps a raw descriptor and answers with it.
func number(fd int, err error) (string, error) { return strconv.Itoa(fd), err }

func TestMain(m *testing.M) {
	slottest.Main(m, map[string]slottest.Command{
		"open":      func(a ...string) (string, error) { return number(unix.Open(a[0], unix.O_RDWR|unix.O_CREAT, 0o600)) },
		"open-read": func(a ...string) (string, error) { return number(unix.Open(a[0], unix.O_RDONLY|unix.O_NONBLOCK, 0)) },
		"mkfifo":    func(a ...string) (string, error) { return "", unix.Mkfifo(a[0], 0o600) },
		"mknod": func(a ...string) (string, error) {
			major, _ := strconv.Atoi(a[2])
			minor, _ := strconv.Atoi(a[3])
			kind := uint32(unix.S_IFCHR)
			if a[1] == "b" {
				kind = unix.S_IFBLK
			}
			return "", unix.Mknod(a[0], kind|0o600, int(unix.Mkdev(uint32(major), uint32(minor))))
		},
		"socketpair": func(a ...string) (string, error) {
			p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			if err == nil && len(a) > 0 && a[0] == "half" {
				err = unix.Close(p[1])
			}
			return number(p[0], err)
		},
		"unix-listen":    func(a ...string) (string, error) { return keep(net.Listen("unix", a[0])) },
		"unix-connect":   func(a ...string) (string, error) { return keep(net.Dial("unix", a[0])) },
		"unix-datagrams": func(a ...string) (string, error) { return keep(net.ListenPacket("unixgram", a[0])) },
		"unix-send":      func(a ...string) (string, error) { return keep(net.Dial("unixgram", a[0])) },
		"unix-accept": func(a ...string) (string, error) {
			return keep(kept[len(kept)-1].(net.Listener).Accept())
		},
		"tcp-listen":  func(a ...string) (string, error) { return keep(net.Listen("tcp", a[0])) },
		"tcp-connect": func(a ...string) (string, error) { return keep(net.Dial("tcp", a[0])) },
		"tcp-accept": func(a ...string) (string, error) {
			return keep(kept[len(kept)-1].(net.Listener).Accept())
		},
		"tcp-pending": func(a ...string) (string, error) { // a listener that accepts nobody
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
			if err != nil {
				return "", err
			}
			if err := unix.Bind(fd, &unix.SockaddrInet4{Port: 7001, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
				return "", err
			}
			if err := unix.Listen(fd, 5); err != nil {
				return "", err
			}
			return keep(net.Dial("tcp", "127.0.0.1:7001"))
		},
		"socket": func(a ...string) (string, error) {
			var n [3]int
			for i := range n {
				n[i], _ = strconv.Atoi(a[i])
			}
			return number(unix.Socket(n[0], n[1], n[2]))
		},
		"socket-odd": func(a ...string) (string, error) { // of a family that CRIU does not know and this kernel does
			var err error
			for _, family := range []int{unix.AF_VSOCK, unix.AF_ALG, unix.AF_KEY, unix.AF_CAN, unix.AF_TIPC} {
				for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET, unix.SOCK_RAW} {
					if _, err = unix.Socket(family, kind, 0); err == nil {
						return "", nil
					}
				}
			}
			return "", err
		},
		"pipe": func(a ...string) (string, error) {
			r, w, err := os.Pipe()
			if err == nil { // a child of the slot holds both ends, too
				_, err = slottest.Child("sleep", nil, r, w)
			}
			return keep([]any{r, w}, err)
		},
		"key": func(...string) (string, error) { // memory with a protection key; "none" where the processor has none
			key, _, errno := unix.Syscall(unix.SYS_PKEY_ALLOC, 0, 0, 0)
			if errno == unix.ENOSPC {
				return "none", nil
			}
			if errno != 0 {
				return "", errno
			}
			m, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
			if err != nil {
				return "", err
			}
			if _, _, errno := unix.Syscall6(unix.SYS_PKEY_MPROTECT, uintptr(unsafe.Pointer(&m[0])), 4096, unix.PROT_READ|unix.PROT_WRITE, key, 0, 0); errno != 0 {
				return "", errno
			}
			return "keyed", nil
		},
		"eventfd": func(a ...string) (string, error) { return number(unix.Eventfd(0, 0)) },
		"segment": func(a ...string) (string, error) {
			id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 4096, 0o600)
			if err == nil {
				_, err = unix.SysvShmAttach(id, 0, 0)
			}
			return number(id, err)
		},
		"memfd": func(a ...string) (string, error) { return number(unix.MemfdCreate("drums", 0)) },
		"pty": func(a ...string) (string, error) {
			fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, 0)
			if err != nil {
				return "", err
			}
			n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
			if err == nil {
				err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
			}
			if err == nil {
				_, err = unix.Open(fmt.Sprintf("/dev/pts/%d", n), unix.O_RDWR|unix.O_NOCTTY, 0)
			}
			return "", err
		},
		"slave": func(a ...string) (string, error) { return number(unix.Open(a[0], unix.O_RDWR|unix.O_NOCTTY, 0)) },
		"uring": func(a ...string) (string, error) {
			var params [120]byte
			fd, err := ioUring(&params)
			return number(fd, err)
		},
		"pidfd": func(a ...string) (string, error) { return number(unix.PidfdOpen(os.Getpid(), 0)) },
		"lock": func(a ...string) (string, error) { // path posix|flock|lease
			fd, err := unix.Open(a[0], unix.O_RDWR|unix.O_CREAT, 0o600)
			if err != nil {
				return "", err
			}
			switch a[1] {
			case "posix":
				err = unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_RDLCK, Start: 5, Len: 10})
			case "flock":
				err = unix.Flock(fd, unix.LOCK_SH)
			case "lease":
				_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK)
			}
			return number(fd, err)
		},
		"unlock": func(a ...string) (string, error) {
			fd, _ := strconv.Atoi(a[0])
			return "", unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_UNLCK})
		},
		"lost-mount": func(a ...string) (string, error) {
			if err := os.Mkdir("/run/lost", 0o700); err != nil {
				return "", err
			}
			if err := unix.Mount("tmpfs", "/run/lost", "tmpfs", 0, ""); err != nil {
				return "", err
			}
			fd, err := unix.Open("/run/lost/file", unix.O_RDWR|unix.O_CREAT, 0o600)
			if err != nil {
				return "", err
			}
			return number(fd, unix.Unmount("/run/lost", unix.MNT_DETACH))
		},
		"map": func(a ...string) (string, error) {
			fd, _ := strconv.Atoi(a[0])
			_, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
			return "", err
		},
		"close":  func(a ...string) (string, error) { fd, _ := strconv.Atoi(a[0]); return "", unix.Close(fd) },
		"fchdir": func(a ...string) (string, error) { fd, _ := strconv.Atoi(a[0]); return "", unix.Fchdir(fd) },
		"jail": func(a ...string) (string, error) { // gives no answer that the host could read
			err := errors.Join(os.MkdirAll(a[0]+"/below", 0o755), unix.Chroot(a[0]), os.Chdir("/below"),
				syscall.Setgroups([]int{7, 9}), syscall.Setresgid(2345, 2346, 2347), syscall.Setresuid(1234, 1235, 1236))
			return "", err
		},
		"nested": func(a ...string) (string, error) {
			return number(slottest.Child("sleep", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}))
		},
		"sleep": func(a ...string) (string, error) { return number(slottest.Child("sleep", nil)) },
		"dirty": func(a ...string) (string, error) { // writes to that many bytes of new memory
			n, err := strconv.Atoi(a[0])
			if err != nil {
				return "", err
			}
			page, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON) // no memory of Go's: the race detector keeps a shadow of that
			for i := 0; i < len(page); i += os.Getpagesize() {
				page[i] = 1
			}
			return keep(page, err)
		},
		"zombie": func(a ...string) (string, error) { return number(slottest.Child("exit", nil)) },
	})
}

func ioUring(params *[120]byte) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 4, uintptr(unsafe.Pointer(params)), 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// blockDevice makes a loop device of the test's own.
func blockDevice(t *testing.T) (minor string) {
	t.Helper()
	backing := filepath.Join(t.TempDir(), "backing")
	if err := os.WriteFile(backing, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--find", "--show", backing).Output()
	if err != nil {
		t.Fatalf("losetup: %v", err)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", device).CombinedOutput(); err != nil {
			t.Errorf("losetup: %v: %s", err, out)
		}
	})
	return strings.TrimPrefix(device, "/dev/loop")
}
