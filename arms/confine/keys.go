package confine

import (
	"encoding/binary"
	"fmt"
	"runtime"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// CRIU's images have no place for memory protection keys (pkeys(7)): a restored task has allocated none, its memory
// carries none, and the next pkey_mprotect fails, on which V8 ends its process. So a slot gets none: pkey_alloc says
// what it says where processor or kernel have none, which every program that asks is ready for.
const keysErrno = unix.ENOSPC

// keyCall is the system call of one of a machine's architectures that allocates a key.
type keyCall struct {
	audit  uint32
	name   specs.Arch
	number uint32
}

var keyCalls = map[string][]keyCall{
	"amd64": {{unix.AUDIT_ARCH_X86_64, specs.ArchX86_64, 330}, {unix.AUDIT_ARCH_X86_64, specs.ArchX32, 330 | 1<<30}, {unix.AUDIT_ARCH_I386, specs.ArchX86, 381}},
	"arm64": {{unix.AUDIT_ARCH_AARCH64, specs.ArchAARCH64, 289}, {unix.AUDIT_ARCH_ARM, specs.ArchARM, 395}},
}

// NoKeys is the filter of system calls with which a slot gets no protection keys, as runc takes it.
func NoKeys() *specs.LinuxSeccomp {
	errno := uint(keysErrno)
	s := &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{Names: []string{"pkey_alloc"}, Action: specs.ActErrno, ErrnoRet: &errno}}}
	for _, c := range keyCalls[runtime.GOARCH] {
		s.Architectures = append(s.Architectures, c.name)
	}
	return s
}

// keyFilter is that filter as the kernel takes it (seccomp(2)).
func keyFilter() (f []unix.SockFilter) {
	// struct seccomp_data: the call's number at 0, the architecture at 4.
	const load, equal, ret = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	for _, c := range keyCalls[runtime.GOARCH] {
		f = append(f,
			unix.SockFilter{Code: load, K: 4}, unix.SockFilter{Code: equal, Jf: 3, K: c.audit},
			unix.SockFilter{Code: load, K: 0}, unix.SockFilter{Code: equal, Jf: 1, K: c.number},
			unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(keysErrno)})
	}
	return append(f, unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ALLOW})
}

// refuseKeys has the process, and what it starts, get no protection keys. It takes CAP_SYS_ADMIN.
func (p *process) refuseKeys() error {
	filter := keyFilter()
	// struct sock_fprog: the number of instructions at 0, where they are at 8.
	const head = 16
	text := make([]byte, head, head+8*len(filter))
	for _, i := range filter {
		text = binary.NativeEndian.AppendUint16(text, i.Code)
		text = append(text, i.Jt, i.Jf)
		text = binary.NativeEndian.AppendUint32(text, i.K)
	}
	binary.NativeEndian.PutUint16(text, uint16(len(filter)))
	binary.NativeEndian.PutUint64(text[8:], uint64(p.below(len(text))+head))
	if err := p.call(unix.SYS_SECCOMP, text, func(at uintptr) [5]uintptr { return [5]uintptr{unix.SECCOMP_SET_MODE_FILTER, 0, at} }); err != nil {
		return fmt.Errorf("filter system calls: %w", err)
	}
	return nil
}
