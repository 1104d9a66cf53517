package registers

import (
	"golang.org/x/sys/unix"
)

// Instruction is "syscall". Its bytes may as well lie inside another
// instruction: the processor starts at the address that it is given.
var Instruction = []byte{0x0f, 0x05}

const (
	// Align is what the address of an instruction is a multiple of.
	Align = 1
	// compatSegment is the code segment of a 32-bit task (__USER32_CS).
	compatSegment = 0x23
	noSyscall     = ^uint64(0)
)

// Registers of one thread. Values that are equal are equal in every register.
type Registers struct{ unix.PtraceRegs }

// Get reads the registers of a thread in a ptrace stop of the calling thread's.
func (r *Registers) Get(tid int) error { return unix.PtraceGetRegs(tid, &r.PtraceRegs) }

// Set writes them.
func (r *Registers) Set(tid int) error { return unix.PtraceSetRegs(tid, &r.PtraceRegs) }

// Compat says that the thread runs a 32-bit program, in which nothing here works.
func (r *Registers) Compat() bool { return r.Cs == compatSegment }

// Stack is the stack pointer.
func (r *Registers) Stack() uintptr { return uintptr(r.Rsp) }

// Call sets the registers for a system call at insn. orig_rax of -1 tells the
// kernel that there is no system call to restart on the way there.
func (r *Registers) Call(insn uintptr, number uintptr, args [5]uintptr) {
	r.Rip, r.Rax, r.Orig_rax = uint64(insn), uint64(number), noSyscall
	r.Rdi, r.Rsi, r.Rdx, r.R10, r.R8 = uint64(args[0]), uint64(args[1]), uint64(args[2]), uint64(args[3]), uint64(args[4])
}

// Quiet takes away what is left of a finished call.
func (r *Registers) Quiet() { r.Orig_rax = noSyscall }

// Result is the error of a finished call, 0 for none.
func (r *Registers) Result() unix.Errno {
	if n := int64(r.Rax); n < 0 && n >= -4095 {
		return unix.Errno(-n)
	}
	return 0
}
