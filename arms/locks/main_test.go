package locks_test

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/procfs/slottest"
)

func numbers(a []string) []int64 {
	out := make([]int64, len(a))
	for i, s := range a {
		out[i], _ = strconv.ParseInt(s, 10, 64)
	}
	return out
}

// caught counts the signals that an agent's handler saw.
var caught atomic.Int64

func TestMain(m *testing.M) {
	slottest.Main(m, map[string]slottest.Command{
		"open": func(a ...string) (string, error) { // path, flags
			fd, err := unix.Open(a[0], int(numbers(a[1:])[0])|unix.O_CREAT, 0o600)
			return strconv.Itoa(fd), err
		},
		"close": func(a ...string) (string, error) { return "", unix.Close(int(numbers(a)[0])) },
		"dup": func(a ...string) (string, error) {
			fd, err := unix.Dup(int(numbers(a)[0]))
			return strconv.Itoa(fd), err
		},
		"lock": func(a ...string) (string, error) { // fd, command, type, start, length
			n := numbers(a)
			return "", unix.FcntlFlock(uintptr(n[0]), int(n[1]), &unix.Flock_t{Type: int16(n[2]), Start: n[3], Len: n[4]})
		},
		"flock": func(a ...string) (string, error) { return "", unix.Flock(int(numbers(a)[0]), unix.LOCK_SH) },
		"map": func(a ...string) (string, error) {
			_, err := unix.Mmap(int(numbers(a)[0]), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
			return "", err
		},
		// drop loses the POSIX locks on a file as CRIU's restorer does: it closes another descriptor of it.
		"drop": func(a ...string) (string, error) {
			fd, err := unix.Open(a[0], unix.O_RDONLY, 0)
			if err != nil {
				return "", err
			}
			return "", unix.Close(fd)
		},
		"child-with": func(a ...string) (string, error) { // a descriptor, shared with a child
			pid, err := slottest.Child("sleep", nil, os.NewFile(uintptr(numbers(a)[0]), "shared"))
			return strconv.Itoa(pid), err
		},
		"threads": func(a ...string) (string, error) {
			for range numbers(a)[0] {
				go func() {
					runtime.LockOSThread()
					for {
						time.Sleep(time.Millisecond)
					}
				}()
			}
			return "", nil
		},
		// sleep is one nanosleep and answers how long it took, in milliseconds.
		"sleep": func(a ...string) (string, error) {
			ts := unix.NsecToTimespec(numbers(a)[0] * 1e6)
			start := time.Now()
			_, _, errno := unix.Syscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), 0, 0)
			if errno != 0 {
				return "", errno
			}
			return strconv.FormatInt(time.Since(start).Milliseconds(), 10), nil
		},
		// read is one read of a pipe that somebody else writes to later.
		"read": func(a ...string) (string, error) {
			var p [2]int
			if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
				return "", err
			}
			go func() {
				time.Sleep(time.Duration(numbers(a)[0]) * time.Millisecond)
				unix.Write(p[1], []byte("words"))
			}()
			buf := make([]byte, 10)
			n, _, errno := unix.Syscall(unix.SYS_READ, uintptr(p[0]), uintptr(unsafe.Pointer(&buf[0])), 10)
			if errno != 0 {
				return "", errno
			}
			return string(buf[:n]), nil
		},
		// poll is one epoll_pwait with a signal mask of its own; such a call is in the middle of two masks when it is stopped.
		"poll": func(a ...string) (string, error) {
			ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
			if err != nil {
				return "", err
			}
			var before, after, inside uint64
			inside = 1 << (unix.SIGUSR2 - 1)
			mask := func(m *uint64) {
				unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_BLOCK, 0, uintptr(unsafe.Pointer(m)), 8, 0, 0)
			}
			mask(&before)
			var event unix.EpollEvent
			start := time.Now()
			_, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT, uintptr(ep), uintptr(unsafe.Pointer(&event)), 1, uintptr(numbers(a)[0]), uintptr(unsafe.Pointer(&inside)), 8)
			took := time.Since(start)
			mask(&after)
			if before != after {
				return "", fmt.Errorf("signal mask %x became %x", before, after)
			}
			if errno == unix.EINTR { // signal(7): epoll_pwait is never restarted after a stop
				return "interrupted", nil
			}
			if errno != 0 {
				return "", errno
			}
			return strconv.FormatInt(took.Milliseconds(), 10), nil
		},
		"block": func(a ...string) (string, error) { // signals for the calling thread
			set := uint64(numbers(a)[0])
			_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_BLOCK, uintptr(unsafe.Pointer(&set)), 0, 8, 0, 0)
			if errno != 0 {
				return "", errno
			}
			return "", nil
		},
		"catch": func(a ...string) (string, error) {
			c := make(chan os.Signal, 100)
			signal.Notify(c, syscall.SIGUSR1)
			go func() {
				for range c {
					caught.Add(1)
				}
			}()
			return "", nil
		},
		"caught": func(a ...string) (string, error) { return strconv.FormatInt(caught.Load(), 10), nil },
		"ignore-trap": func(a ...string) (string, error) { // signal.Ignore keeps Go's own handler for it
			action := struct{ handler, flags, restorer, mask uintptr }{handler: 1}
			_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGTRAP), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
			if errno != 0 {
				return "", errno
			}
			return "", nil
		},
		// seccomp forbids fcntl for the calling thread and all others.
		"seccomp": func(a ...string) (string, error) {
			filter := []unix.SockFilter{
				{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
				{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FCNTL, Jf: 1},
				{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
				{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
			}
			prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
			runtime.LockOSThread()
			if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
				return "", err
			}
			_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
			if errno != 0 {
				return "", errno
			}
			return "", nil
		},
		"fcntl-forbidden": func(a ...string) (string, error) {
			_, err := unix.FcntlInt(0, unix.F_GETFD, 0)
			return strconv.FormatBool(errors.Is(err, unix.ENOSYS)), nil
		},
		// start runs a program of the slot with one descriptor, number 3.
		"start": func(a ...string) (string, error) {
			p, err := os.StartProcess(a[0], a[:1], &os.ProcAttr{
				Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, os.NewFile(uintptr(numbers(a[1:])[0]), "given")},
			})
			if err != nil {
				return "", err
			}
			return strconv.Itoa(p.Pid), nil
		},
	})
}
