// The guest of this package's tests: it makes a slot around itself, becomes its
// first process and holds what a checkpoint must bring back.
//
//	guest init LOWER UPPER WORK ROOT WHAT...   in fresh namespaces, by the test
//	guest tree WHAT...                         as pid 1 of the slot
//	guest child ROLE                           below pid 1
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func main() {
	var err error
	switch os.Args[1] {
	case "init":
		err = enter(os.Args[2], os.Args[3], os.Args[4], os.Args[5], os.Args[6:])
	case "tree":
		err = tree(os.Args[2:])
	case "child":
		err = child(os.Args[2])
	}
	if err != nil {
		_ = os.WriteFile("/failed", []byte(err.Error()), 0o644)
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

func enter(lower, upper, work, root string, what []string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,index=on,nfs_export=on,uuid=null", lower, upper, work)
	if err := unix.Mount("overlay", root, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount overlay: %w", err)
	}
	for _, m := range []struct{ source, target, fstype string }{
		{"proc", "proc", "proc"}, {"tmpfs", "dev", "tmpfs"}, {"tmpfs", "tmp", "tmpfs"},
	} {
		if err := unix.Mount(m.source, filepath.Join(root, m.target), m.fstype, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	if err := unix.Mknod(filepath.Join(root, "dev/null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		return err
	}
	if slices.Contains(what, "bind") {
		if err := unix.Mount(filepath.Join(root, "data"), filepath.Join(root, "alias"), "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	if slices.Contains(what, "device") {
		f, err := os.Create(filepath.Join(root, "dev/zero"))
		if err != nil {
			return err
		}
		f.Close()
		if err := unix.Mount("/dev/zero", filepath.Join(root, "dev/zero"), "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := loopbackUp(); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	first := 0
	if slices.Contains(what, "external") {
		first = 1 // descriptor 0 is a socket of the test's
	}
	for fd := first; fd < 3; fd++ {
		if err := unix.Dup2(int(null.Fd()), fd); err != nil {
			return err
		}
	}
	// What the test program itself inherited would tie the slot to the outside.
	if err := unix.CloseRange(3, 1<<31, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return err
	}
	return unix.Exec("/guest", append([]string{"guest", "tree"}, what...), []string{"HOME=/"})
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifreq, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifreq.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifreq)
}

// keep holds what must stay open.
var keep []any

func open(name string, flags int) (int, error) {
	fd, err := unix.Open(name, flags|unix.O_CREAT&^unix.O_RDONLY, 0o644)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", name, err)
	}
	return fd, nil
}

func lock(fd, cmd int, kind int16, start, length int64) error {
	return unix.FcntlFlock(uintptr(fd), cmd, &unix.Flock_t{Type: kind, Start: start, Len: length})
}

func tree(what []string) error {
	for _, w := range what {
		if err := do(w); err != nil {
			return fmt.Errorf("%s: %w", w, err)
		}
	}
	// The counter lives in memory; the file only shows it. A restored tree goes on where it was.
	fd, err := open("/counter", unix.O_RDWR|unix.O_CREAT)
	if err != nil {
		return err
	}
	var count uint64
	show := func() error {
		_, err := unix.Pwrite(fd, binary.LittleEndian.AppendUint64(nil, count), 0)
		return err
	}
	if err := show(); err != nil {
		return err
	}
	if err := os.WriteFile("/ready", nil, 0o644); err != nil {
		return err
	}
	for {
		count++
		if err := show(); err != nil {
			return err
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func start(role string, files ...*os.File) (*exec.Cmd, error) {
	cmd := exec.Command("/guest", "child", role)
	cmd.ExtraFiles = files
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		if _, err := os.Stat("/ready-" + role); err == nil {
			return cmd, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("child %s does not get ready", role)
		}
		time.Sleep(time.Millisecond)
	}
}

func do(what string) error {
	switch what {
	case "bind", "device", "external", "no-session": // done by enter or by the test
		return nil
	case "locks":
		plain, err := open("/data/plain", unix.O_RDWR)
		if err != nil {
			return err
		}
		if err := lock(plain, unix.F_SETLK, unix.F_RDLCK, 0, 10); err != nil {
			return err
		}
		mapped, err := open("/data/mapped", unix.O_RDWR)
		if err != nil {
			return err
		}
		m, err := unix.Mmap(mapped, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		keep = append(keep, m)
		if err := lock(mapped, unix.F_SETLK, unix.F_WRLCK, 5, 0); err != nil {
			return err
		}
		ofd, err := open("/data/ofd", unix.O_RDWR)
		if err != nil {
			return err
		}
		if err := lock(ofd, unix.F_OFD_SETLK, unix.F_WRLCK, 100, 50); err != nil {
			return err
		}
		flock, err := os.OpenFile("/data/flock", os.O_RDWR, 0)
		if err != nil {
			return err
		}
		keep = append(keep, flock)
		if err := unix.Flock(int(flock.Fd()), unix.LOCK_EX); err != nil {
			return err
		}
		_, err = start("sharer", flock)
		return err
	case "shared":
		return share("/data/shared")
	case "replaced":
		return replaced("/data/replaced", 8)
	case "lock":
		fd, err := open("/data/plain", unix.O_RDWR)
		if err != nil {
			return err
		}
		return lock(fd, unix.F_SETLK, unix.F_RDLCK, 0, 10)
	case "files":
		shared, err := open("/data/ro-shared", unix.O_RDONLY)
		if err != nil {
			return err
		}
		m, err := unix.Mmap(shared, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		private, err := open("/data/ro-private", unix.O_RDONLY)
		if err != nil {
			return err
		}
		p, err := unix.Mmap(private, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
		if err != nil {
			return err
		}
		keep = append(keep, m, p)
		for name, flags := range map[string]int{
			"/data/readonly": unix.O_RDONLY, "/tmp/scratch": unix.O_RDWR | unix.O_CREAT, "/data/gone": unix.O_RDWR,
			"/alias/bound": unix.O_WRONLY, "/data/writeonly": unix.O_WRONLY, "/dev/null": unix.O_RDWR, "/proc/self/oom_score_adj": unix.O_RDWR,
		} {
			if _, err := open(name, flags); err != nil {
				return err
			}
		}
		if err := os.Remove("/data/gone"); err != nil {
			return err
		}
		fd, err := unix.MemfdCreate("drums", 0)
		if err != nil {
			return err
		}
		return unix.Ftruncate(fd, 8192)
	case "stopped":
		cmd, err := start("idle")
		if err != nil {
			return err
		}
		return cmd.Process.Signal(syscall.SIGSTOP)
	case "user":
		cmd := exec.Command("/guest", "child", "idle")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
		if err := os.Chmod("/", 0o777); err != nil {
			return err
		}
		return cmd.Start()
	case "spin": // threads that are never in a system call, each showing what it does
		fd, err := open("/data/spin", unix.O_RDWR|unix.O_CREAT)
		if err != nil {
			return err
		}
		if err := unix.Ftruncate(fd, 4096); err != nil {
			return err
		}
		m, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		keep = append(keep, m)
		runtime.GOMAXPROCS(8)
		for i := range 4 {
			n := (*uint64)(unsafe.Pointer(&m[i*64]))
			go func() {
				runtime.LockOSThread()
				for {
					atomic.AddUint64(n, 1)
				}
			}()
		}
		return nil
	case "zombie":
		cmd := exec.Command("/guest", "child", "none")
		if err := cmd.Start(); err != nil {
			return err
		}
		return unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
	case "mptcp":
		l, err := net.Listen("tcp", "127.0.0.1:5000")
		keep = append(keep, l)
		return err
	case "accept":
		l, err := net.Listen("unix", "/sock")
		if err != nil {
			return err
		}
		go func() {
			c, err := l.Accept()
			if err == nil {
				err = os.WriteFile("/accepted", nil, 0o644)
			}
			keep = append(keep, c, err)
		}()
		return nil
	case "tcp":
		var config net.ListenConfig
		config.SetMultipathTCP(false) // CRIU knows nothing of it
		l, err := config.Listen(context.Background(), "tcp", "127.0.0.1:5000")
		if err != nil {
			return err
		}
		c, err := net.Dial("tcp", "127.0.0.1:5000")
		if err != nil {
			return err
		}
		s, err := l.Accept()
		if err != nil {
			return err
		}
		keep = append(keep, l, c, s)
		return nil
	case "inflight":
		l, err := net.Listen("unix", "/sock")
		if err != nil {
			return err
		}
		c, err := net.Dial("unix", "/sock")
		if err != nil {
			return err
		}
		if _, err := c.Write([]byte("nobody reads this")); err != nil {
			return err
		}
		keep = append(keep, l, c)
		return nil
	case "ghost":
		f, err := os.Create("/data/large")
		if err != nil {
			return err
		}
		keep = append(keep, f)
		if _, err := f.Write(make([]byte, 3<<20)); err != nil {
			return err
		}
		return os.Remove(f.Name())
	}
	return fmt.Errorf("unknown")
}

// sharedPages of a file are written, and in the child every sharedOwn-th of them once more.
const (
	sharedPages = 512
	sharedOwn   = 64
	// sharedSealed pages at the end are read-only in the child.
	sharedSealed = 64
)

// share maps a file that stays open, privately, writes its pages and forks: the child holds them copy on write.
func share(name string) error {
	fd, err := open(name, unix.O_RDWR|unix.O_CREAT)
	if err != nil {
		return err
	}
	if err := unix.Ftruncate(fd, sharedPages*4096); err != nil {
		return err
	}
	m, err := unix.Mmap(fd, 0, sharedPages*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	keep = append(keep, m)
	for i := range sharedPages {
		binary.LittleEndian.PutUint64(m[i*4096:], uint64(i)+1)
	}
	var pipe [2]int
	if err := unix.Pipe(pipe[:]); err != nil {
		return err
	}
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	if pid == 0 { // one thread and no runtime: system calls only
		for i := 0; i < sharedPages; i += sharedOwn {
			m[i*4096+8] = 0xc
		}
		// As a browser's renderer does with what it relocated: the end is a mapping of its own from here on.
		syscall.RawSyscall(unix.SYS_MPROTECT, uintptr(unsafe.Pointer(&m[(sharedPages-sharedSealed)*4096])), sharedSealed*4096, unix.PROT_READ)
		syscall.RawSyscall(unix.SYS_WRITE, uintptr(pipe[1]), uintptr(unsafe.Pointer(&m[0])), 1)
		for {
			syscall.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
		}
	}
	if _, err := unix.Read(pipe[0], make([]byte, 1)); err != nil {
		return err
	}
	return os.WriteFile("/sharing", fmt.Appendf(nil, "%d %x", pid, uintptr(unsafe.Pointer(&m[0]))), 0o644)
}

// replaced has so many children map a file whose name another one then takes.
func replaced(name string, children int) error {
	if err := os.WriteFile(name, make([]byte, 4096), 0o644); err != nil {
		return err
	}
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	m, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	keep = append(keep, m)
	if err := unix.Close(fd); err != nil {
		return err
	}
	for range children {
		pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno != 0 {
			return errno
		}
		for pid == 0 {
			syscall.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
		}
	}
	if err := os.WriteFile(name+".new", []byte("the new one"), 0o644); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

func child(role string) error {
	if role == "none" {
		os.Exit(0)
	}
	// The name appears when the file is closed: whoever waits for it may stop this process at once.
	if err := os.WriteFile("/not-ready-"+role, nil, 0o644); err != nil {
		return err
	}
	if err := os.Rename("/not-ready-"+role, "/ready-"+role); err != nil {
		return err
	}
	for {
		time.Sleep(time.Hour)
	}
}
