package criu

import (
	core_x86 "github.com/checkpoint-restore/go-criu/v7/crit/images/core-x86"
	criu_core "github.com/checkpoint-restore/go-criu/v7/crit/images/criu-core"
)

// compat says whether a task runs in x86's 32-bit mode; CRIU has no such tasks on other machines.
func compat(core *criu_core.CoreEntry) bool {
	return core.GetThreadInfo().GetGpregs().GetMode() == core_x86.UserX86RegsMode_COMPAT
}
