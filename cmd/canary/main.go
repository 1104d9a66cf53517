// Command canary runs in a slot: it holds random tokens where one slot could be
// seen by another, and looks for those of others. It is put into slots through
// their guest server for as long as isolation is looked at, and taken away again.
//
//	canary hold TOKEN:PORT...    holds each in every channel until it is ended; prints "held" once all are
//	canary seek TOKEN:PORT...    prints "CHANNEL TOKEN" for each that it sees, "blind CHANNEL REASON" where it cannot look
//	canary clean TOKEN:PORT...   takes away what a hold that was ended left, and fails where some is left
//	canary leave                 takes the program itself away
//
// A token is 32 hexadecimal digits. Channels are files (/tmp), POSIX shared memory
// (/dev/shm, mapped), System V shared memory, abstract sockets, TCP ports and, where
// there is a display, its clipboard. A token counts as seen only where its whole text was read.
//
// Always holds: it is static and small, imports no network library, waits for
// nobody longer than patience, and touches nothing that has not a token's name.
package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// token is one that is held or looked for.
type token struct {
	text string
	port int
}

// channel is a way in which a slot could be seen.
type channel struct {
	name string
	// hold puts the token there and keeps it until the program ends.
	hold func(token) error
	// seek reads what is there under the token's name; empty where there is nothing.
	seek func(token) (string, error)
	// clean takes away what outlives the program.
	clean func(token) error
}

var channels = []channel{
	{"file", func(t token) error { return writeFile("/tmp/.drums-canary-", t) }, func(t token) (string, error) { return readFile("/tmp/.drums-canary-", t) }, func(t token) error { return remove("/tmp/.drums-canary-", t) }},
	{"shm", holdShared, seekShared, func(t token) error { return remove(shmPrefix, t) }},
	{"sysv-shm", holdSystemV, seekSystemV, cleanSystemV},
	{"abstract-socket", func(t token) error { return serve(abstract(t), t) }, func(t token) (string, error) { return ask(abstract(t)) }, nil},
	{"port", func(t token) error { return serve(loopback(t), t) }, func(t token) (string, error) { return ask(loopback(t)) }, nil},
	{"clipboard", holdClipboard, seekClipboard, cleanClipboard},
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "canary:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 1 && args[0] == "leave" {
		at, err := os.Executable()
		if err != nil {
			return err
		}
		return os.Remove(at)
	}
	if len(args) < 2 {
		return errors.New("usage: canary hold|seek|clean TOKEN:PORT, as many as there are")
	}
	var tokens []token
	for _, a := range args[1:] {
		text, port, _ := strings.Cut(a, ":")
		n, err := strconv.Atoi(port)
		if err != nil || len(text) != 32 || n < 1024 || n > 65535 {
			return fmt.Errorf("%q is no TOKEN:PORT", a)
		}
		tokens = append(tokens, token{text, n})
	}
	switch args[0] {
	case "hold":
		for _, t := range tokens {
			for _, c := range channels {
				if err := c.hold(t); err != nil { // the seek in this slot finds out, and says which
					fmt.Printf("cannot hold %s: %v\n", c.name, err)
				}
			}
		}
		fmt.Println("held")
		time.Sleep(time.Hour)
		return nil
	case "seek":
		for _, c := range channels {
			for _, t := range tokens {
				have, err := c.seek(t)
				switch {
				case err != nil:
					fmt.Printf("blind %s %v\n", c.name, err)
				case have == t.text:
					fmt.Printf("%s %s\n", c.name, t.text)
				}
			}
		}
		return nil
	case "clean":
		var errs []error
		for _, t := range tokens {
			for _, c := range channels {
				if c.clean != nil {
					errs = append(errs, c.clean(t))
				}
				if have, err := c.seek(t); err == nil && have != "" {
					errs = append(errs, fmt.Errorf("%s of %s is still there", c.name, t.text))
				}
			}
		}
		return errors.Join(errs...)
	}
	return fmt.Errorf("no command %q", args[0])
}

const shmPrefix = "/dev/shm/drums-canary-"

func writeFile(prefix string, t token) error {
	return os.WriteFile(prefix+t.text, []byte(t.text), 0o600)
}

func readFile(prefix string, t token) (string, error) {
	b, err := os.ReadFile(prefix + t.text)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return string(b), err
}

func remove(prefix string, t token) error {
	if err := os.Remove(prefix + t.text); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// mapped maps a token's shared memory.
func mapped(t token, flags int) ([]byte, error) {
	f, err := os.OpenFile(shmPrefix+t.text, flags, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if flags&os.O_CREATE != 0 {
		if err := f.Truncate(int64(len(t.text))); err != nil {
			return nil, err
		}
	}
	if st, err := f.Stat(); err != nil || st.Size() != int64(len(t.text)) { // mapped beyond its end it would be a signal
		return nil, fmt.Errorf("it has another size: %v", err)
	}
	return unix.Mmap(int(f.Fd()), 0, len(t.text), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

func holdShared(t token) error {
	b, err := mapped(t, os.O_RDWR|os.O_CREATE)
	if err == nil {
		copy(b, t.text)
	}
	return err
}

func seekShared(t token) (string, error) {
	b, err := mapped(t, os.O_RDWR)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer unix.Munmap(b)
	return string(b), nil
}

// key of System V shared memory: 31 bits of the token, which is read as a whole.
func key(t token) int {
	n, _ := strconv.ParseUint(t.text[:8], 16, 32)
	return int(n&0x7fffffff | 1) // 0 would be private
}

func holdSystemV(t token) error {
	id, err := unix.SysvShmGet(key(t), len(t.text), unix.IPC_CREAT|unix.IPC_EXCL|0o600)
	if err != nil {
		return err
	}
	b, err := unix.SysvShmAttach(id, 0, 0)
	if err == nil {
		copy(b, t.text)
	}
	return err
}

func findSystemV(t token) (id int, found bool, err error) {
	id, err = unix.SysvShmGet(key(t), 0, 0)
	if errors.Is(err, unix.ENOENT) {
		return 0, false, nil
	}
	return id, err == nil, err
}

func seekSystemV(t token) (string, error) {
	id, found, err := findSystemV(t)
	if err != nil || !found {
		return "", err
	}
	b, err := unix.SysvShmAttach(id, 0, unix.SHM_RDONLY)
	if err != nil {
		return "", err
	}
	defer unix.SysvShmDetach(b)
	return string(b[:min(len(b), len(t.text))]), nil
}

func cleanSystemV(t token) error {
	have, err := seekSystemV(t)
	if err != nil || have != t.text {
		return err
	}
	id, _, err := findSystemV(t)
	if err == nil {
		_, err = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
	}
	return err
}

func abstract(t token) unix.Sockaddr { return &unix.SockaddrUnix{Name: "@drums-canary-" + t.text} }

func loopback(t token) unix.Sockaddr {
	return &unix.SockaddrInet4{Port: t.port, Addr: [4]byte{127, 0, 0, 1}}
}

func family(a unix.Sockaddr) int {
	if _, ok := a.(*unix.SockaddrUnix); ok {
		return unix.AF_UNIX
	}
	return unix.AF_INET
}

// serve gives the token to whoever connects.
func serve(at unix.Sockaddr, t token) error {
	fd, err := unix.Socket(family(at), unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err == nil {
		err = unix.Bind(fd, at)
	}
	if err == nil {
		err = unix.Listen(fd, 16)
	}
	if err != nil {
		return err
	}
	go func() {
		for {
			c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
			if err != nil {
				if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNABORTED) {
					continue
				}
				return
			}
			unix.Write(c, []byte(t.text))
			unix.Close(c)
		}
	}()
	return nil
}

// patience is how long anybody is waited for, in seconds: what a slot's own program
// needs on a host that is very busy.
const patience = 5

func patient(fd int) error {
	t := unix.Timeval{Sec: patience}
	return errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &t), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &t))
}

// ask reads a token; nobody who listens is nothing.
func ask(at unix.Sockaddr) (string, error) {
	fd, err := unix.Socket(family(at), unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	if err := patient(fd); err != nil {
		return "", err
	}
	if err := unix.Connect(fd, at); errors.Is(err, unix.ECONNREFUSED) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	have, b := "", make([]byte, 64)
	for len(have) < 32 {
		n, err := unix.Read(fd, b)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return "", err
		}
		if n <= 0 {
			break
		}
		have += string(b[:n])
	}
	return have, nil
}
