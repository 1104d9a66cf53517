package registers

import (
	"golang.org/x/sys/unix"
)

// This compiles for arm64 and has never run there. One difference is known: arm64
// decides on restarting a task's own system call before the first stop, so a
// relative sleep that was cut short starts anew at its full length.

// Instruction is "svc #0".
var Instruction = []byte{0x01, 0x00, 0x00, 0xd4}

const (
	// Align is what the address of an instruction is a multiple of.
	Align      = 4
	ntPrstatus = 1
	// stateAArch32 is PSR_MODE32_BIT of pstate.
	stateAArch32 = 0x10
)

// Registers of one thread. Values that are equal are equal in every register.
type Registers struct{ unix.PtraceRegsArm64 }

// Get reads the registers of a thread in a ptrace stop of the calling thread's.
func (r *Registers) Get(tid int) error {
	return unix.PtraceGetRegSetArm64(tid, ntPrstatus, &r.PtraceRegsArm64)
}

// Set writes them.
func (r *Registers) Set(tid int) error {
	return unix.PtraceSetRegSetArm64(tid, ntPrstatus, &r.PtraceRegsArm64)
}

// Compat says that the thread runs a 32-bit program, in which nothing here works.
func (r *Registers) Compat() bool { return r.Pstate&stateAArch32 != 0 }

// Stack is the stack pointer.
func (r *Registers) Stack() uintptr { return uintptr(r.Sp) }

// Call sets the registers for a system call at insn.
func (r *Registers) Call(insn uintptr, number uintptr, args [5]uintptr) {
	r.Pc, r.Regs[8] = uint64(insn), uint64(number)
	for i, a := range args {
		r.Regs[i] = uint64(a)
	}
}

// Quiet has nothing to do: no call that is made here asks to be restarted.
func (r *Registers) Quiet() {}

// Result is the error of a finished call, 0 for none.
func (r *Registers) Result() unix.Errno {
	if n := int64(r.Regs[0]); n < 0 && n >= -4095 {
		return unix.Errno(-n)
	}
	return 0
}
