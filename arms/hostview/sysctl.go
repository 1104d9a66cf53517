package hostview

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

const sysctlRoot = "/proc/sys"

// readSysctls reads every value below /proc/sys that can be read.
func readSysctls(s *Snapshot) error {
	// What is mounted there (binfmt_misc) is no value of the kernel's tree, and a
	// look at an automount point would mount it.
	mounted, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(m.Mountpoint, sysctlRoot+"/"), false
	})
	if err != nil {
		return err
	}
	w := sysctlWalk{Snapshot: s, mounts: map[string]bool{}, buffer: make([]byte, 128<<10)}
	for _, m := range mounted {
		w.mounts[m.Mountpoint] = true
	}
	s.Sysctls = make(map[string]string, 2048)
	return w.walk(sysctlRoot)
}

type sysctlWalk struct {
	*Snapshot
	mounts map[string]bool
	buffer []byte
}

func (w *sysctlWalk) walk(dir string) error {
	d, err := os.Open(dir)
	if gone(err) { // a link or a module went
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	entries, err := d.ReadDir(-1)
	if err != nil && !gone(err) {
		return err
	}
	for _, e := range entries {
		at := dir + "/" + e.Name()
		switch {
		case w.mounts[at]:
		case e.IsDir():
			if err := w.walk(at); err != nil {
				return err
			}
		default:
			w.read(int(d.Fd()), at)
		}
	}
	return nil
}

// read takes one value of a folder down, or why it could not be read.
func (w *sysctlWalk) read(dir int, at string) {
	name := sysctlName(at)
	if _, never := sysctlNever[name]; never {
		return
	}
	value, err := w.value(dir, path.Base(at))
	switch {
	case err == nil:
		w.Sysctls[name] = hidden(name, value)
	case gone(err):
	case errors.Is(err, unix.EACCES) && writeOnly(at):
	case errors.Is(err, unix.EIO) && strings.HasSuffix(name, ".stable_secret"):
		w.Sysctls[name] = "not set" // addrconf_sysctl_stable_secret answers so
	default:
		w.Unread["sysctl "+name] = err.Error()
	}
}

// value reads with one read(2): a second one could be of another value.
func (w *sysctlWalk) value(dir int, name string) (string, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, w.buffer)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(fd, w.buffer)
	}
	if err != nil {
		return "", err
	}
	if n == len(w.buffer) {
		return "", fmt.Errorf("it is longer than %d bytes", n)
	}
	return strings.TrimSuffix(string(w.buffer[:n]), "\n"), nil
}

// writeOnly says that a value has no mode to read it. Root is denied too: the
// tree knows no capability that would overrule the mode (sysctl_perm).
func writeOnly(at string) bool {
	info, err := os.Lstat(at)
	return err == nil && info.Mode().Perm()&0o444 == 0
}

// hidden keeps keys out of records.
func hidden(name, value string) string {
	if strings.HasSuffix(name, "_key") || strings.HasSuffix(name, "_secret") {
		return fmt.Sprintf("sha256 %x", sha256.Sum256([]byte(value)))
	}
	return value
}

// sysctlName writes a path as sysctl(8) does: dots for slashes, and a slash for
// the dot in a link's name.
func sysctlName(at string) string {
	return strings.Map(func(r rune) rune {
		switch r {
		case '/':
			return '.'
		case '.':
			return '/'
		}
		return r
	}, strings.TrimPrefix(at, sysctlRoot+"/"))
}

// linkOf is the link that a value is of, as the kernel names it; empty for
// values of none, and for those of all links.
func linkOf(name string) string {
	parts := strings.Split(name, ".")
	if len(parts) < 4 || parts[0] != "net" || parts[2] != "conf" && parts[2] != "neigh" || parts[3] == "all" || parts[3] == "default" {
		return ""
	}
	return strings.ReplaceAll(parts[3], "/", ".")
}

// volatileReason says why a value changes by itself; empty if it does not.
func volatileReason(name string) string {
	name = strings.ReplaceAll(name, "/", "_") // a star does not stand for it
	for _, v := range sysctlVolatile {
		for pattern := range strings.FieldsSeq(v.patterns) {
			if ok, err := path.Match(pattern, name); ok && err == nil {
				return v.reason
			}
		}
	}
	return ""
}

// sysctlNever are values that are not read, since the reading does something.
var sysctlNever = map[string]string{
	"vm.stat_refresh": "reading it gathers the statistics of all CPUs (vmstat_refresh)",
}

// sysctlVolatile are values that change without anybody setting them. Patterns
// are path.Match's: a star stands for any text, dots included.
var sysctlVolatile = []struct{ patterns, reason string }{
	{"fs.aio-nr", "counts asynchronous requests that are in flight"},
	{"fs.dentry-state fs.inode-nr fs.inode-state", "counts what is cached"},
	{"fs.file-nr", "counts open files"},
	{"fs.quota.allocated_dquots fs.quota.cache_hits fs.quota.drops fs.quota.free_dquots fs.quota.lookups fs.quota.reads fs.quota.syncs fs.quota.writes",
		"counts the work of disk quotas"},
	{"kernel.cad_pid", "names a process by its number in the reader's pid namespace"},
	{"kernel.hung_task_detect_count kernel.hung_task_warnings", "counts tasks that hung, or the warnings that are left"},
	{"kernel.ns_last_pid", "is the process id that was given last; CRIU sets it to get the one that it wants"},
	{"kernel.perf_event_max_sample_rate", "is lowered by the kernel when sampling takes too long"},
	{"kernel.pty.nr", "counts pseudo-terminals"},
	{"kernel.random.entropy_avail", "measures the entropy at hand"},
	{"kernel.random.uuid", "is another one at each reading"},
	{"kernel.spl.*", "holds statistics of ZFS"},
	{"kernel.tainted", "collects what befell the kernel; nobody can take it back"},
	{"net.core.netdev_rss_key net.ipv4.tcp_fastopen_key", "is made by the kernel once a driver or a socket needs it"},
	{"net.ipv4.conf.*.mc_forwarding net.ipv6.conf.*.mc_forwarding", "says whether a multicast router runs"},
	{"net.ipv4.tcp_available_congestion_control net.ipv4.tcp_available_ulp net.mptcp.available_* sunrpc.transports", "grows with modules that are loaded"},
	{"net.ipv6.conf.*.hop_limit net.ipv6.conf.*.mtu net.ipv6.neigh.*.base_reachable_time_ms net.ipv6.neigh.*.base_reachable_time net.ipv6.neigh.*.retrans_time_ms net.ipv6.neigh.*.retrans_time",
		"follows the router's advertisement"},
	{"net.netfilter.nf_conntrack_count", "counts connections"},
}
