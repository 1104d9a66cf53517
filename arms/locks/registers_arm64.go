package locks

import (
	"golang.org/x/sys/unix"
)

// Proven is false: the repair compiles for arm64 and has never run there. One
// difference is known: arm64 decides on restarting a task's own system call
// before the first stop, so a relative sleep that was cut short starts anew at
// its full length.
var Proven = false

// syscallInstruction is "svc #0".
var syscallInstruction = []byte{0x01, 0x00, 0x00, 0xd4}

const (
	instructionAlign = 4
	ntPrstatus       = 1
	// stateAArch32 is PSR_MODE32_BIT of pstate.
	stateAArch32 = 0x10
)

type registers struct{ unix.PtraceRegsArm64 }

func getRegisters(tid int, r *registers) error {
	return unix.PtraceGetRegSetArm64(tid, ntPrstatus, &r.PtraceRegsArm64)
}

func setRegisters(tid int, r *registers) error {
	return unix.PtraceSetRegSetArm64(tid, ntPrstatus, &r.PtraceRegsArm64)
}

func (r *registers) supported() error {
	if r.Pstate&stateAArch32 != 0 {
		return errCompat
	}
	return nil
}

func (r *registers) stack() uintptr { return uintptr(r.Sp) }

// call sets the registers for a system call at insn.
func (r *registers) call(insn uintptr, number, a, b, c uintptr) {
	r.Pc, r.Regs[8] = uint64(insn), uint64(number)
	r.Regs[0], r.Regs[1], r.Regs[2] = uint64(a), uint64(b), uint64(c)
}

// quiet has nothing to do: F_SETLK never asks to be restarted.
func (r *registers) quiet() {}

func (r *registers) result() unix.Errno {
	if n := int64(r.Regs[0]); n < 0 && n >= -4095 {
		return unix.Errno(-n)
	}
	return 0
}
