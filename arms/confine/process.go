package confine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/registers"
)

// Parts of linux/ptrace.h and linux/auxvec.h that x/sys does not name.
const (
	optionTraceSysGood = 1
	optionExitKill     = 1 << 20
	syscallStop        = unix.SIGTRAP | 0x80
	auxVDSO            = 33 // AT_SYSINFO_EHDR
)

// process is a program that stands at its first instruction. Its methods are
// called on the thread that started it.
type process struct {
	pid   int
	insn  uintptr
	saved registers.Registers
}

// hold takes over a process that asked to be traced and stands at the end of its execve.
func hold(pid int, hostProc *os.File) (*process, error) {
	p := &process{pid: pid}
	if err := p.wait(unix.SIGTRAP); err != nil {
		return nil, err
	}
	if err := unix.PtraceSetOptions(pid, optionTraceSysGood|optionExitKill); err != nil {
		return nil, fmt.Errorf("set options: %w", err)
	}
	if err := p.saved.Get(pid); err != nil {
		return nil, fmt.Errorf("read registers: %w", err)
	}
	if p.saved.Compat() {
		return nil, errors.New("the guest server is a 32-bit program")
	}
	return p, p.find(hostProc)
}

// find finds a system call instruction in the vDSO, which the kernel maps into every program.
func (p *process) find(hostProc *os.File) error {
	fd, err := unix.Openat(int(hostProc.Fd()), strconv.Itoa(p.pid)+"/auxv", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open auxiliary vector: %w", err)
	}
	file := os.NewFile(uintptr(fd), "auxv")
	defer file.Close()
	vector, err := io.ReadAll(file)
	if err != nil {
		return fmt.Errorf("read auxiliary vector: %w", err)
	}
	for ; len(vector) >= 16; vector = vector[16:] {
		if binary.NativeEndian.Uint64(vector) != auxVDSO {
			continue
		}
		at := uintptr(binary.NativeEndian.Uint64(vector[8:]))
		code := make([]byte, 16<<10) // a vDSO has two or three pages
		n, err := unix.ProcessVMReadv(p.pid, []unix.Iovec{{Base: &code[0], Len: uint64(len(code))}},
			[]unix.RemoteIovec{{Base: at, Len: 4096}, {Base: at + 4096, Len: 4096}, {Base: at + 8192, Len: 8192}}, 0)
		if err != nil {
			return fmt.Errorf("read vDSO: %w", err)
		}
		for from := 0; ; from++ {
			i := bytes.Index(code[from:n], registers.Instruction)
			if i < 0 {
				break
			}
			if from += i; from%registers.Align == 0 {
				p.insn = at + uintptr(from)
				return nil
			}
		}
	}
	return errors.New("the kernel gave the program no vDSO with a system call instruction")
}

// call has the process make a system call with text on its stack, whose address
// args gets, and puts stack and registers back.
func (p *process) call(number uintptr, text []byte, args func(at uintptr) [5]uintptr) error {
	at := p.below(len(text))
	before := make([]byte, len(text))
	if n, err := unix.PtracePeekData(p.pid, at, before); err != nil || n != len(before) {
		return fmt.Errorf("read stack: %d bytes: %w", n, err)
	}
	if n, err := unix.PtracePokeData(p.pid, at, text); err != nil || n != len(text) {
		return fmt.Errorf("write stack: %d bytes: %w", n, err)
	}
	now := p.saved
	now.Call(p.insn, number, args(at))
	if err := now.Set(p.pid); err != nil {
		return fmt.Errorf("set registers: %w", err)
	}
	for range 2 { // into the call and out of it
		if err := unix.PtraceSyscall(p.pid, 0); err != nil {
			return fmt.Errorf("go on: %w", err)
		}
		if err := p.wait(syscallStop); err != nil {
			return err
		}
	}
	if err := now.Get(p.pid); err != nil {
		return fmt.Errorf("read registers: %w", err)
	}
	if errno := now.Result(); errno != 0 {
		return errno
	}
	if n, err := unix.PtracePokeData(p.pid, at, before); err != nil || n != len(before) {
		return fmt.Errorf("put stack back: %d bytes: %w", n, err)
	}
	return nil
}

// below is where call puts so many bytes of text.
func (p *process) below(size int) uintptr {
	return (p.saved.Stack() - registers.RedZone - uintptr(size)) &^ 15
}

// release lets the process run its own program.
func (p *process) release() error {
	if err := p.saved.Set(p.pid); err != nil {
		return fmt.Errorf("put registers back: %w", err)
	}
	if err := unix.PtraceDetach(p.pid); err != nil {
		return fmt.Errorf("let go: %w", err)
	}
	return nil
}

// wait waits for a stop by this signal.
func (p *process) wait(signal unix.Signal) error {
	var ws unix.WaitStatus
	for {
		_, err := unix.Wait4(p.pid, &ws, unix.WALL, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait for its stop: %w", err)
		}
		if !ws.Stopped() || ws.StopSignal() != signal {
			return fmt.Errorf("it stopped or ended with status %#x", uint32(ws))
		}
		return nil
	}
}
