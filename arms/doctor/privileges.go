package doctor

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/footprint"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func root(_ context.Context, h *Host) []bench.HostFinding {
	const remedy = "run this as root"
	uid, err := h.uid()
	switch {
	case err != nil:
		return unread(Unknown, "root", err)
	case uid != 0:
		return one(Lack, "root", fmt.Sprintf("this runs as uid %d", uid), remedy)
	}
	mapped, err := h.read("/proc/self/uid_map")
	switch {
	case absent(err): // a kernel without user namespaces
	case err != nil:
		return unread(Unknown, "root", err)
	case strings.Join(strings.Fields(mapped), " ") != "0 0 4294967295":
		return one(Lack, "root", "this root is one of a user namespace: the kernel refuses it loop devices, device nodes and criu's clone of pids",
			"run this as the host's own root, or in a container without user namespace (userns=host)")
	}
	return fine("root", "the host's own")
}

// needed are the capabilities without which the arm does not work.
var needed = []struct {
	bit  uint
	name string
	why  string
}{
	{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN", "mounts and namespaces cannot be made"},
	{unix.CAP_SYS_PTRACE, "CAP_SYS_PTRACE", "criu cannot seize a slot's processes, and locks cannot be put back"},
	{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN", "a slot's loopback interface cannot be set up or restored"},
	{unix.CAP_SYS_CHROOT, "CAP_SYS_CHROOT", "nothing can enter a slot's mount namespace"},
	{unix.CAP_MKNOD, "CAP_MKNOD", "a slot's device nodes and deleted files in its layers cannot be made"},
	{unix.CAP_SETUID, "CAP_SETUID", "restored processes cannot get their users back"},
	{unix.CAP_SETGID, "CAP_SETGID", "restored processes cannot get their groups back"},
	{unix.CAP_SETPCAP, "CAP_SETPCAP", "restored processes cannot get their capabilities back"},
	{unix.CAP_CHOWN, "CAP_CHOWN", "files that are copied up cannot keep their owners"},
	{unix.CAP_FOWNER, "CAP_FOWNER", "files that are copied up cannot keep their modes"},
	{unix.CAP_DAC_OVERRIDE, "CAP_DAC_OVERRIDE", "files of other users in an image cannot be read and written"},
	{unix.CAP_KILL, "CAP_KILL", "processes of other users in a slot cannot be ended"},
}

// Needs are the privileges without which an arm does not work, each with what it is for.
func Needs(machine bool) (list []footprint.Need) {
	if machine {
		return []footprint.Need{
			{Name: "CAP_SYS_ADMIN", Why: "the machine's network namespace cannot be made", Capability: unix.CAP_SYS_ADMIN},
			{Name: "CAP_NET_ADMIN", Why: "its link cannot be made", Capability: unix.CAP_NET_ADMIN},
			{Name: "/dev/net/tun", Why: "its network card has no other end", Device: "/dev/net/tun"},
		}
	}
	for _, c := range needed {
		list = append(list, footprint.Need{Name: c.name, Why: c.why, Capability: c.bit})
	}
	return append(list, footprint.Need{Name: "/dev/loop-control", Why: "the image cannot become a block device", Device: "/dev/loop-control"})
}

func capabilities(_ context.Context, h *Host) []bench.HostFinding {
	const remedy = "give it to this process: --privileged or --cap-add for a container, AmbientCapabilities or CapabilityBoundingSet for a service"
	text, err := h.status("CapEff")
	var mask uint64
	if err == nil {
		mask, err = strconv.ParseUint(text, 16, 64)
	}
	if err != nil {
		return unread(Unknown, "capabilities", err)
	}
	var found []bench.HostFinding
	for _, c := range needed {
		if mask&(1<<c.bit) == 0 {
			found = append(found, one(Lack, subjectOf(c.name), c.name+" is missing: "+c.why, remedy)...)
		}
	}
	if len(found) == 0 {
		found = fine("capabilities", "all %d that are needed", len(needed))
	}
	if mask&(1<<unix.CAP_CHECKPOINT_RESTORE) == 0 {
		found = append(found, one(Warn, "cap-checkpoint-restore", "CAP_CHECKPOINT_RESTORE is missing: criu needs CAP_SYS_ADMIN in its place to give restored processes their pids", remedy)...)
	}
	if mask&(1<<unix.CAP_SYS_RESOURCE) == 0 {
		found = append(found, one(Warn, "cap-sys-resource",
			`CAP_SYS_RESOURCE is missing: processes of another uid than root cannot be dumped (criu: "Can't get rlimit: Operation not permitted"), limits above the hard limit and negative oom_score_adj cannot be restored`,
			`run every process of the guest as root (guest: user: "root"), or give CAP_SYS_RESOURCE to this process`)...)
	}
	return found
}

// subjectOf turns CAP_SYS_ADMIN into cap-sys-admin.
func subjectOf(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "-")) }

// namespaces looks for each kind that a slot has, and for a bound of none.
func namespaces(_ context.Context, h *Host) []bench.HostFinding {
	var found []bench.HostFinding
	for _, kind := range []string{"mnt", "pid", "net", "ipc", "uts"} {
		there, err := h.exists("/proc/self/ns/" + kind)
		if err != nil {
			return unread(Unknown, "namespaces", err)
		}
		if !there {
			found = append(found, one(Lack, "namespaces", "the kernel has no "+kind+" namespaces", "use a kernel with CONFIG_NAMESPACES and all its parts")...)
			continue
		}
		file := "/proc/sys/user/max_" + kind + "_namespaces"
		most, err := h.read(file)
		switch {
		case absent(err): // an older kernel has no such bound
		case err != nil:
			return unread(Unknown, "namespaces", err)
		case most == "0":
			found = append(found, one(Lack, "namespaces", file+" is 0: none can be made", "sysctl -w user.max_"+kind+"_namespaces=10000")...)
		}
	}
	if found == nil {
		found = fine("namespaces", "mount, pid, network, ipc and uts namespaces can be made")
	}
	return found
}

// confinement is what holds back even root with all capabilities.
func confinement(_ context.Context, h *Host) []bench.HostFinding {
	var found []bench.HostFinding
	scope, err := h.read("/proc/sys/kernel/yama/ptrace_scope")
	switch {
	case absent(err):
	case err != nil:
		return unread(Unknown, "confinement", err)
	case scope == "3":
		found = one(Lack, "confinement", "kernel.yama.ptrace_scope is 3: nobody may trace a process until the next boot", "boot with kernel.yama.ptrace_scope at 2 or less")
	}
	mode, err := h.status("Seccomp")
	switch {
	case err != nil: // a kernel without seccomp
	case mode != "0":
		found = append(found, one(Warn, "confinement", "a seccomp filter is in force: calls that criu needs may be refused", "start the container with seccomp=unconfined")...)
	}
	if found == nil {
		found = fine("confinement", "no seccomp filter, and processes may be traced")
	}
	return found
}
