package confine

import (
	"golang.org/x/sys/unix"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Capability is one that the root user of a slot keeps.
type Capability struct {
	Name string
	Bit  uint
	// Why it is kept, and what it reaches.
	Why string
}

// Kept are the capabilities of a slot: Docker's default set (moby,
// oci/caps/defaults.go) without CAP_MKNOD. None of them reaches anything outside
// the slot's namespaces, but for CAP_AUDIT_WRITE. docs/security.md has this list.
var Kept = []Capability{
	{"CAP_CHOWN", unix.CAP_CHOWN, "packages and tasks give files to other users; files of the slot's own only"},
	{"CAP_DAC_OVERRIDE", unix.CAP_DAC_OVERRIDE, "root writes files of every user of the image"},
	{"CAP_FOWNER", unix.CAP_FOWNER, "root changes modes and times of files of every user of the image"},
	{"CAP_FSETID", unix.CAP_FSETID, "set-group-id bits survive a write by root"},
	{"CAP_KILL", unix.CAP_KILL, "root ends programs of every user; pids of the slot's namespace only"},
	{"CAP_SETGID", unix.CAP_SETGID, "sudo, su and the guest server start programs as another user"},
	{"CAP_SETUID", unix.CAP_SETUID, "as CAP_SETGID"},
	{"CAP_SETPCAP", unix.CAP_SETPCAP, "programs give up capabilities of their own; none can be gained by it"},
	{"CAP_NET_BIND_SERVICE", unix.CAP_NET_BIND_SERVICE, "servers on ports below 1024; of the slot's network namespace only"},
	{"CAP_NET_RAW", unix.CAP_NET_RAW, "ping; the slot's network namespace has a loopback interface and no other"},
	{"CAP_SYS_CHROOT", unix.CAP_SYS_CHROOT, "daemons that lock themselves in; the root of the mount namespace is the slot's"},
	{"CAP_AUDIT_WRITE", unix.CAP_AUDIT_WRITE, "sudo and PAM refuse to work without; a slot can write lines into the host's audit log"},
	{"CAP_SETFCAP", unix.CAP_SETFCAP, "packages set file capabilities; the host runs no file of a slot's"},
}

// KeptMask is Kept as a set, in the form of /proc/PID/status.
func KeptMask() uint64 {
	var m uint64
	for _, c := range Kept {
		m |= 1 << c.Bit
	}
	return m
}

// KeptNames are the names of Kept, as OCI has them.
func KeptNames() []string {
	var names []string
	for _, c := range Kept {
		names = append(names, c.Name)
	}
	return names
}

// Device is a character device that a slot may open. Minor is -1 for every one.
type Device struct {
	Major, Minor int64
	Name, Why    string
}

// Devices are those that runc allows by default (libcontainer/specconv,
// AllowedDevices), without its leave to make nodes of every device. No block
// device is among them. docs/security.md has this list.
var Devices = []Device{
	{1, 3, "null", "programs throw output away"},
	{1, 5, "zero", "empty memory"},
	{1, 7, "full", "tests of a full disk"},
	{1, 8, "random", "random numbers; what is written to it is mixed in and counts for nothing"},
	{1, 9, "urandom", "as random"},
	{5, 0, "tty", "the terminal of the program that opens it"},
	{5, 2, "ptmx", "new terminals, of the slot's own devpts"},
	{136, -1, "pts/*", "as ptmx"},
}

// DeviceRules are Devices in the form of the OCI runtime specification: nothing
// but them.
func DeviceRules() []specs.LinuxDeviceCgroup {
	all := int64(-1)
	rules := []specs.LinuxDeviceCgroup{{Allow: false, Type: "a", Major: &all, Minor: &all, Access: "rwm"}}
	for _, d := range Devices {
		rules = append(rules, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &d.Major, Minor: &d.Minor, Access: "rwm"})
	}
	return rules
}

// Path is a place of /proc that a slot reads and does not write.
type Path struct{ At, Why string }

// ReadOnly are the places of /proc that the kernel lets user 0 write without a
// capability, and that reach the host: those that containerd makes read-only or
// masks by default (pkg/oci/spec.go). One that the kernel does not have is left out.
// The others that are masked there need a capability that a slot lacks
// (/proc/kcore CAP_SYS_RAWIO, /proc/kmsg CAP_SYSLOG). docs/security.md has this list.
var ReadOnly = []Path{
	{"/proc/acpi", "wake-up sources of the host"},
	{"/proc/asound", "sound cards of the host"},
	{"/proc/bus", "configuration space of PCI devices"},
	{"/proc/dynamic_debug", "what the host's kernel logs"},
	{"/proc/fs", "settings of the host's file systems"},
	{"/proc/irq", "which processor serves which interrupt"},
	{"/proc/mtrr", "caching of physical memory"},
	{"/proc/scsi", "adds and removes disks of the host"},
	{"/proc/sys", "settings of the host's kernel; core_pattern names a program that the host runs as root"},
	{"/proc/sysrq-trigger", "restarts the host at once"},
}

// ReadOnlyPaths are the paths of ReadOnly.
func ReadOnlyPaths() []string {
	var paths []string
	for _, p := range ReadOnly {
		paths = append(paths, p.At)
	}
	return paths
}
