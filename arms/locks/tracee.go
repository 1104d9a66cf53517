package locks

import (
	"bytes"
	"cmp"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
	"unsafe"

	prom "github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/registers"
	"github.com/drumsbench/drumsbench/engine"
)

// Parts of linux/ptrace.h and linux/rseq.h that x/sys does not name.
const (
	ptraceEventStop      = 128
	ptraceGetSigmask     = 0x420a
	ptraceSetSigmask     = 0x420b
	ptraceGetRseq        = 0x420f
	optionTraceSysGood   = 1
	optionExitKill       = 1 << 20
	optionSuspendSeccomp = 1 << 21
	syscallStop          = unix.SIGTRAP | 0x80
	rseqCriticalOffset   = 8 // of rseq_cs in struct rseq
)

// tracee is one stopped thread in which system calls can be made. All methods
// must be called on one OS thread, the one that seized it.
//
// How a call is made, and why so:
//
//  1. Seized and interrupted, the thread is in a ptrace stop inside the kernel's
//     signal delivery, where the decision on restarting its own system call is
//     still to come. It depends on the registers alone.
//  2. The registers are set to a system call instruction of the vDSO, with no
//     system call to restart. The thread goes on with PTRACE_SYSCALL, not by
//     single steps: a step's SIGTRAP is a real signal and would reset the
//     handler of a program that ignores or blocks it.
//  3. Every signal is blocked meanwhile, so that none that is pending is taken
//     by a thread with foreign registers.
//  4. At the end it is interrupted again, into the same kind of stop as in 1, and
//     only there gets its own registers back. So the restart decision falls on
//     them exactly as if nothing had been.
//
// Should this process die on the way, the kernel kills the thread's process
// (PTRACE_O_EXITKILL): it must never run with foreign registers.
type tracee struct {
	pid, tid int
	insn     uintptr // address of a system call instruction
	saved    registers.Registers
	now      registers.Registers
	mask     uint64
	scratch  uintptr
	memory   [flockSize]byte // what was at scratch
	rseq     uintptr         // address of rseq_cs, or 0
	rseqCS   [8]byte
	entered  bool // the thread left its first stop
}

const flockSize = int(unsafe.Sizeof(unix.Flock_t{}))

func ptrace(request, tid int, addr, data uintptr) error {
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(tid), addr, data, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// seize stops a thread for injection. On failure nothing is held.
func seize(ctx context.Context, pid, tid int, seccomp bool) (*tracee, error) {
	options := uintptr(optionTraceSysGood | optionExitKill)
	if seccomp {
		options |= optionSuspendSeccomp
	}
	if err := ptrace(unix.PTRACE_SEIZE, tid, 0, options); err != nil {
		return nil, fmt.Errorf("seize thread %d: %w", tid, err)
	}
	t := &tracee{pid: pid, tid: tid}
	if err := t.arrest(ctx); err != nil {
		// It still has its own registers.
		return nil, errors.Join(err, t.detach())
	}
	return t, nil
}

// arrest brings the thread to its first stop and saves what will be touched.
func (t *tracee) arrest(ctx context.Context) error {
	if err := ptrace(unix.PTRACE_INTERRUPT, t.tid, 0, 0); err != nil {
		return fmt.Errorf("interrupt thread %d: %w", t.tid, err)
	}
	ws, err := t.wait(ctx)
	if err != nil {
		return err
	}
	if !eventStop(ws) {
		return fmt.Errorf("thread %d stopped with status %#x instead of an event", t.tid, uint32(ws))
	}
	if err := t.saved.Get(t.tid); err != nil {
		return fmt.Errorf("read registers of thread %d: %w", t.tid, err)
	}
	if t.saved.Compat() {
		return errCompat
	}
	if err := t.survey(); err != nil {
		return err
	}
	if t.rseq, err = rseqCritical(t.tid); err != nil {
		return err
	}
	if t.rseq != 0 {
		if err := t.peek(t.rseq, t.rseqCS[:]); err != nil {
			return fmt.Errorf("read rseq of thread %d: %w", t.tid, err)
		}
		if t.rseqCS == [8]byte{} {
			t.rseq = 0 // in no critical section: the kernel will not touch it
		}
	}
	if err := ptrace(ptraceGetSigmask, t.tid, 8, uintptr(unsafe.Pointer(&t.mask))); err != nil {
		return fmt.Errorf("read signal mask of thread %d: %w", t.tid, err)
	}
	return nil
}

// survey finds an instruction to use and a place to write: below the stack, or
// where the stack pointer is none, the start of a private writable mapping. A
// browser has thousands of mappings: they are only read where the instruction is not
// where the kernel put it, or the stack is none.
func (t *tracee) survey() error {
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", t.pid))
	if err != nil {
		return fmt.Errorf("read memory of pid %d: %w", t.pid, err)
	}
	defer mem.Close()
	below := (t.saved.Stack() - registers.RedZone - uintptr(flockSize)) &^ 15
	if t.insn = inVDSO(t.pid, mem); t.insn != 0 {
		if t.scratch = below; t.peek(t.scratch, t.memory[:]) == nil {
			return nil
		}
	}
	proc, err := prom.NewProc(t.pid)
	if err != nil {
		return fmt.Errorf("read mappings of pid %d: %w", t.pid, err)
	}
	maps, err := proc.ProcMaps()
	if err != nil {
		return fmt.Errorf("read mappings of pid %d: %w", t.pid, err)
	}
	if t.insn, err = findSyscall(maps, mem); err != nil {
		return fmt.Errorf("read memory of pid %d: %w", t.pid, err)
	}
	places := []uintptr{below}
	for _, m := range maps {
		if m.Perms.Read && m.Perms.Write && m.Perms.Private {
			places = append(places, m.StartAddr)
		}
	}
	for _, t.scratch = range places {
		if err = t.peek(t.scratch, t.memory[:]); err == nil {
			return nil
		}
	}
	return fmt.Errorf("find memory of thread %d that can be written: %w", t.tid, err)
}

// rseqCritical is where the thread's pointer to a critical section lies, 0 if
// it registered none. The kernel clears that pointer when it sees the thread
// elsewhere, and the thread would not be sent to its abort handler.
func rseqCritical(tid int) (uintptr, error) {
	var conf struct {
		Pointer          uint64
		Size, Sig, Flags uint32
		_                uint32
	}
	err := ptrace(ptraceGetRseq, tid, unsafe.Sizeof(conf), uintptr(unsafe.Pointer(&conf)))
	if err == unix.EIO || err == unix.EINVAL { // a kernel before 5.13, or without rseq
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read rseq of thread %d: %w", tid, err)
	}
	if conf.Pointer == 0 {
		return 0, nil
	}
	return uintptr(conf.Pointer) + rseqCriticalOffset, nil
}

// setLock makes the thread call fcntl(fd, F_SETLK, lock).
func (t *tracee) setLock(ctx context.Context, fd int, lock unix.Flock_t) error {
	buf := (*[flockSize]byte)(unsafe.Pointer(&lock))[:]
	if !t.entered {
		t.entered = true
		all := ^uint64(0)
		if err := ptrace(ptraceSetSigmask, t.tid, 8, uintptr(unsafe.Pointer(&all))); err != nil {
			return fmt.Errorf("block signals of thread %d: %w", t.tid, err)
		}
	}
	if err := t.poke(t.scratch, buf); err != nil {
		return fmt.Errorf("write stack of thread %d: %w", t.tid, err)
	}
	t.now = t.saved
	t.now.Call(t.insn, unix.SYS_FCNTL, [5]uintptr{uintptr(fd), unix.F_SETLK, t.scratch})
	if err := t.now.Set(t.tid); err != nil {
		return fmt.Errorf("set registers of thread %d: %w", t.tid, err)
	}
	for stops := 0; stops < 2; { // into the call and out of it
		ws, err := t.resume(ctx, unix.PTRACE_SYSCALL)
		if err != nil {
			return err
		}
		switch {
		case ws.StopSignal() == syscallStop:
			stops++
		case eventStop(ws): // of the group stop, or of an interrupt that came twice
		default:
			return fmt.Errorf("thread %d stopped with signal %v inside the call", t.tid, ws.StopSignal())
		}
	}
	if err := t.now.Get(t.tid); err != nil {
		return fmt.Errorf("read registers of thread %d: %w", t.tid, err)
	}
	if errno := t.now.Result(); errno != 0 {
		return errno
	}
	return nil
}

// release gives the thread everything back and lets go of it. Whatever fails,
// the thread does not run with foreign registers: its process is killed then.
func (t *tracee) release(ctx context.Context) error {
	err := t.restore(ctx)
	if err == nil {
		err = t.detach()
	}
	if err != nil {
		unix.Kill(t.pid, unix.SIGKILL)
		return fmt.Errorf("%w; its process was killed", err)
	}
	return nil
}

func (t *tracee) restore(ctx context.Context) error {
	if !t.entered {
		return nil
	}
	if err := ptrace(unix.PTRACE_INTERRUPT, t.tid, 0, 0); err != nil {
		return fmt.Errorf("interrupt thread %d: %w", t.tid, err)
	}
	t.now.Quiet()
	if err := t.now.Set(t.tid); err != nil {
		return fmt.Errorf("set registers of thread %d: %w", t.tid, err)
	}
	ws, err := t.resume(ctx, unix.PTRACE_CONT)
	if err != nil {
		return err
	}
	if !eventStop(ws) {
		return fmt.Errorf("thread %d stopped with signal %v after the call", t.tid, ws.StopSignal())
	}
	if err := t.poke(t.scratch, t.memory[:]); err != nil {
		return fmt.Errorf("restore stack of thread %d: %w", t.tid, err)
	}
	if t.rseq != 0 {
		if err := t.poke(t.rseq, t.rseqCS[:]); err != nil {
			return fmt.Errorf("restore rseq of thread %d: %w", t.tid, err)
		}
	}
	if err := ptrace(ptraceSetSigmask, t.tid, 8, uintptr(unsafe.Pointer(&t.mask))); err != nil {
		return fmt.Errorf("restore signal mask of thread %d: %w", t.tid, err)
	}
	if err := t.saved.Set(t.tid); err != nil {
		return fmt.Errorf("restore registers of thread %d: %w", t.tid, err)
	}
	var back registers.Registers
	if err := back.Get(t.tid); err != nil {
		return fmt.Errorf("read registers of thread %d: %w", t.tid, err)
	}
	if back != t.saved {
		return fmt.Errorf("registers of thread %d differ after they were restored", t.tid)
	}
	return nil
}

func (t *tracee) detach() error {
	if err := ptrace(unix.PTRACE_DETACH, t.tid, 0, 0); err != nil {
		return fmt.Errorf("detach from thread %d: %w", t.tid, err)
	}
	return nil
}

// eventStop says that the thread is in a stop of PTRACE_INTERRUPT or of its group.
func eventStop(ws unix.WaitStatus) bool { return uint32(ws)>>16 == ptraceEventStop }

// resume lets the thread go on and waits for its next stop. A SIGSTOP that was
// still pending is passed on: its tree is to be stopped anyway.
func (t *tracee) resume(ctx context.Context, request int) (unix.WaitStatus, error) {
	var signal uintptr
	for {
		if err := ptrace(request, t.tid, 0, signal); err != nil {
			return 0, fmt.Errorf("resume thread %d: %w", t.tid, err)
		}
		ws, err := t.wait(ctx)
		if err != nil || eventStop(ws) || ws.StopSignal() != unix.SIGSTOP {
			return ws, err
		}
		signal = uintptr(unix.SIGSTOP)
	}
}

// wait returns the thread's next stop. It polls, because a wait cannot be
// cancelled: a lock on a file system that hangs would hold this process, too.
func (t *tracee) wait(ctx context.Context) (unix.WaitStatus, error) {
	for i := 0; ; i++ {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(t.tid, &ws, unix.WALL|unix.WNOHANG, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, fmt.Errorf("wait for thread %d: %w", t.tid, err)
		case pid == t.tid && ws.Stopped():
			return ws, nil
		case pid == t.tid:
			return 0, fmt.Errorf("wait for thread %d: %w: it ended", t.tid, engine.ErrDead)
		}
		if err := ctx.Err(); err != nil {
			return 0, fmt.Errorf("wait for thread %d: %w", t.tid, err)
		}
		if i < 100 {
			runtime.Gosched()
		} else {
			time.Sleep(min(time.Duration(i-99)*10*time.Microsecond, time.Millisecond))
		}
	}
}

func (t *tracee) peek(addr uintptr, out []byte) error {
	n, err := unix.PtracePeekData(t.tid, addr, out)
	if err == nil && n != len(out) {
		err = unix.EIO
	}
	return err
}

func (t *tracee) poke(addr uintptr, data []byte) error {
	n, err := unix.PtracePokeData(t.tid, addr, data)
	if err == nil && n != len(data) {
		err = unix.EIO
	}
	return err
}

// inVDSO finds a system call instruction in the vDSO where the kernel's auxiliary vector has it and it begins as a
// program does; 0 where it is not, as in a process that has moved it.
func inVDSO(pid int, mem io.ReaderAt) uintptr {
	const (
		sysinfoEHDR = 33 // AT_SYSINFO_EHDR
		pair        = 16
	)
	vector, err := os.ReadFile(fmt.Sprintf("/proc/%d/auxv", pid))
	if err != nil {
		return 0
	}
	for ; len(vector) >= pair; vector = vector[pair:] {
		if binary.NativeEndian.Uint64(vector) != sysinfoEHDR {
			continue
		}
		at := binary.NativeEndian.Uint64(vector[8:])
		buf := make([]byte, 16<<10)
		n, _ := mem.ReadAt(buf, int64(at))
		if n < len(elf.ELFMAG) || string(buf[:len(elf.ELFMAG)]) != elf.ELFMAG {
			return 0
		}
		return instruction(buf[:n], uintptr(at))
	}
	return 0
}

// instruction is the address of a system call instruction in code that lies at an address; 0 for none.
func instruction(code []byte, base uintptr) uintptr {
	for at := 0; ; at++ {
		i := bytes.Index(code[at:], registers.Instruction)
		if i < 0 {
			return 0
		}
		if at += i; at%registers.Align == 0 {
			return base + uintptr(at)
		}
	}
}

// findSyscall finds a system call instruction in the vDSO, or in another mapping that can be executed.
func findSyscall(maps []*prom.ProcMap, mem io.ReaderAt) (uintptr, error) {
	code := slices.DeleteFunc(slices.Clone(maps), func(m *prom.ProcMap) bool {
		return !m.Perms.Execute || m.Pathname == "[vsyscall]"
	})
	slices.SortStableFunc(code, func(a, b *prom.ProcMap) int {
		vdso := func(m *prom.ProcMap) int { return strings.Compare(m.Pathname, "[vdso]") }
		return cmp.Compare(vdso(a)*vdso(a), vdso(b)*vdso(b))
	})
	buf := make([]byte, 16<<10) // a vDSO has two or three pages, and fresh memory is dear
	for _, m := range code {
		n, err := mem.ReadAt(buf[:min(uintptr(len(buf)), m.EndAddr-m.StartAddr)], int64(m.StartAddr))
		if n == 0 && err != nil {
			continue
		}
		if at := instruction(buf[:n], m.StartAddr); at != 0 {
			return at, nil
		}
	}
	return 0, errors.New("no system call instruction found")
}
