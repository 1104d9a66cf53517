package pages

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// message is one packet between engine and server, both of which are the same program. Descriptors that come with it
// are closed by who cannot use them.
type message struct {
	// Op is what it is about; an answer has that of its request.
	Op   string
	Slot int64  `json:",omitempty"`
	Key  int64  `json:",omitempty"`
	Pid  int    `json:",omitempty"`
	Dir  string `json:",omitempty"`
	// File is where a working set lies or is to be written.
	File string `json:",omitempty"`
	// Nanoseconds from now.
	For   int64  `json:",omitempty"`
	Stats *Stats `json:",omitempty"`
	Err   string `json:",omitempty"`
}

// Requests, each of which is answered.
const (
	opSlot     = "slot"     // Slot, Dir, File
	opTask     = "task"     // Slot, Key, Pid, with the userfaultfd
	opFinished = "finished" // Slot
	opRoot     = "root"     // Slot, with a pidfd of the slot's first process
	opReady    = "ready"    // Slot, For
	opStats    = "stats"    // Slot
	opComplete = "complete" // Slot
	opEnd      = "end"      // Slot, File
	opQuit     = "quit"
)

// What the server says unasked.
const (
	opForked = "forked" // Slot, Key, with the userfaultfd
	opLeft   = "left"   // Slot, Key
	opFailed = "failed" // Slot, Err: the slot can only be killed
)

// link is a socket that keeps messages apart.
type link struct{ fd int }

const maxMessage = 64 << 10

func (l link) send(m message, fds ...int) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	for {
		err = unix.Sendmsg(l.fd, b, rights, nil, unix.MSG_NOSIGNAL)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("send %s: %w", m.Op, err)
	}
	return nil
}

// receive waits for a message; io.EOF where the other side is gone. fd is -1 where none came with it.
func (l link) receive() (m message, fd int, err error) {
	b, oob := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4))
	var n, oobn, flags int
	for {
		n, oobn, flags, _, err = unix.Recvmsg(l.fd, b, oob, unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	switch {
	case errors.Is(err, unix.ECONNRESET), err == nil && n == 0:
		return m, -1, io.EOF
	case err != nil:
		return m, -1, fmt.Errorf("receive: %w", err)
	}
	fd, err = oneRight(oob[:oobn])
	if err != nil {
		return m, -1, err
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = errors.New("receive: a message was cut short")
	} else if err = json.Unmarshal(b[:n], &m); err != nil {
		err = fmt.Errorf("receive: %w", err)
	}
	if err != nil && fd >= 0 {
		unix.Close(fd)
		fd = -1
	}
	return m, fd, err
}

// oneRight is the descriptor of a control message, -1 for none.
func oneRight(oob []byte) (int, error) {
	if len(oob) == 0 {
		return -1, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return -1, os.NewSyscallError("parse control message", err)
	}
	fd := -1
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, f := range fds {
			if fd >= 0 {
				unix.Close(f)
				continue
			}
			fd = f
		}
	}
	return fd, nil
}
