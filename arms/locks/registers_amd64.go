package locks

import (
	"golang.org/x/sys/unix"
)

// Proven says that the repair has been run on this architecture.
var Proven = true

// syscallInstruction is "syscall". Its bytes may as well lie inside another
// instruction: the processor starts at the address that it is given.
var syscallInstruction = []byte{0x0f, 0x05}

const (
	instructionAlign = 1
	// compatSegment is the code segment of a 32-bit task (__USER32_CS).
	compatSegment = 0x23
	noSyscall     = ^uint64(0)
)

type registers struct{ unix.PtraceRegs }

func getRegisters(tid int, r *registers) error { return unix.PtraceGetRegs(tid, &r.PtraceRegs) }
func setRegisters(tid int, r *registers) error { return unix.PtraceSetRegs(tid, &r.PtraceRegs) }

func (r *registers) supported() error {
	if r.Cs == compatSegment {
		return errCompat
	}
	return nil
}

func (r *registers) stack() uintptr { return uintptr(r.Rsp) }

// call sets the registers for a system call at insn. orig_rax of -1 tells the
// kernel that there is no system call to restart on the way there.
func (r *registers) call(insn uintptr, number, a, b, c uintptr) {
	r.Rip, r.Rax, r.Orig_rax = uint64(insn), uint64(number), noSyscall
	r.Rdi, r.Rsi, r.Rdx = uint64(a), uint64(b), uint64(c)
}

// quiet takes away what is left of a finished call.
func (r *registers) quiet() { r.Orig_rax = noSyscall }

func (r *registers) result() unix.Errno {
	if n := int64(r.Rax); n < 0 && n >= -4095 {
		return unix.Errno(-n)
	}
	return 0
}
