// Package hostfacts reads what the host is: what decides whether two runs may
// be compared and whether a checkpoint can be used.
//
// Always holds: what cannot be read is an unknown fact with the reason; no
// value is made up, none is remembered from an earlier host.
package hostfacts

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sort"
	"strconv"
	"strings"

	"github.com/containerd/cgroups/v3"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Read returns the host's facts, in a fixed order.
func Read() []bench.Fact {
	var facts []bench.Fact
	add := func(name, source string, read func() (string, error)) {
		f := bench.Fact{Name: name, View: engine.ViewHost}
		v, err := read()
		if err != nil {
			f.Reason = err.Error()
		} else {
			f.Known, f.Value, f.Source = true, v, source
		}
		facts = append(facts, f)
	}
	file := func(name, path string) {
		add(name, path, func() (string, error) { return readLine(path) })
	}
	add("kernel-release", "uname(2)", func() (string, error) { return uname(func(u *unix.Utsname) []byte { return u.Release[:] }) })
	add("kernel-version", "uname(2)", func() (string, error) { return uname(func(u *unix.Utsname) []byte { return u.Version[:] }) })
	add("machine", "uname(2)", func() (string, error) { return uname(func(u *unix.Utsname) []byte { return u.Machine[:] }) })
	add("cpu-model", "/proc/cpuinfo", func() (string, error) {
		return cpu(func(c procfs.CPUInfo) string { return c.ModelName })
	})
	add("cpu-features", "/proc/cpuinfo, sha256 of the sorted flags", func() (string, error) {
		return cpu(func(c procfs.CPUInfo) string {
			flags := append([]string{}, c.Flags...)
			sort.Strings(flags)
			sum := sha256.Sum256([]byte(strings.Join(flags, " ")))
			return hex.EncodeToString(sum[:])
		})
	})
	add("cpus", "sched_getaffinity(2)", func() (string, error) { return strconv.Itoa(runtime.NumCPU()), nil })
	add("memory-bytes", "/proc/meminfo", func() (string, error) { return meminfo(func(m procfs.Meminfo) *uint64 { return m.MemTotalBytes }) })
	add("swap-bytes", "/proc/meminfo", func() (string, error) { return meminfo(func(m procfs.Meminfo) *uint64 { return m.SwapTotalBytes }) })
	add("host-id", "/etc/machine-id, sha256 with a prefix of ours", func() (string, error) { return hostID("/etc/machine-id") })
	file("boot-id", "/proc/sys/kernel/random/boot_id")
	file("clock-source", "/sys/devices/system/clocksource/clocksource0/current_clocksource")
	file("transparent-hugepages", "/sys/kernel/mm/transparent_hugepage/enabled")
	file("ksm", "/sys/kernel/mm/ksm/run")
	add("cgroup-mode", "statfs(2) of /sys/fs/cgroup", cgroupMode)
	add("cap-sys-resource", "/proc/self/status CapEff", func() (string, error) { return capability(unix.CAP_SYS_RESOURCE) })
	add("capabilities", "/proc/self/status CapEff", effective)
	add("os-release", "/etc/os-release", osRelease)
	file("load-average", "/proc/loadavg")
	add("kvm", "/dev/kvm", func() (string, error) { return device("/dev/kvm") })
	add("fuse", "/dev/fuse", func() (string, error) { return device("/dev/fuse") })
	add("loop-control", "/dev/loop-control", func() (string, error) { return device("/dev/loop-control") })
	add("nbd", "/dev/nbd0", func() (string, error) { return device("/dev/nbd0") })
	return facts
}

// hostID tells hosts apart across boots without giving away machine-id(5),
// which asks to be hashed before it leaves the host.
func hostID(path string) (string, error) {
	id, err := readLine(path)
	if err != nil {
		return "", err
	}
	if raw, err := hex.DecodeString(id); err != nil || len(raw) != 16 {
		return "", fmt.Errorf("%s does not hold 128 bits in hexadecimal", path)
	}
	sum := sha256.Sum256([]byte("drumsbench host " + id))
	return hex.EncodeToString(sum[:]), nil
}

func readLine(path string) (string, error) {
	b, err := os.ReadFile(path)
	return strings.TrimSpace(string(b)), err
}

func uname(field func(*unix.Utsname) []byte) (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", err
	}
	return unix.ByteSliceToString(field(&u)), nil
}

func cpu(field func(procfs.CPUInfo) string) (string, error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return "", err
	}
	list, err := fs.CPUInfo()
	if err != nil {
		return "", err
	}
	if len(list) == 0 {
		return "", errors.New("no processor is listed")
	}
	if v := field(list[0]); v != "" {
		return v, nil
	}
	return "", errors.New("the first processor does not say")
}

func meminfo(field func(procfs.Meminfo) *uint64) (string, error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return "", err
	}
	m, err := fs.Meminfo()
	if err != nil {
		return "", err
	}
	v := field(m)
	if v == nil {
		return "", errors.New("not in /proc/meminfo")
	}
	return strconv.FormatUint(*v, 10), nil
}

func cgroupMode() (string, error) {
	switch cgroups.Mode() {
	case cgroups.Legacy:
		return "legacy", nil
	case cgroups.Hybrid:
		return "hybrid", nil
	case cgroups.Unified:
		return "unified", nil
	}
	return "", errors.New("no cgroup hierarchy is mounted")
}

func capability(bit uint) (string, error) {
	text, err := effective()
	if err != nil {
		return "", err
	}
	mask, err := strconv.ParseUint(text, 16, 64)
	if err != nil {
		return "", err
	}
	return strconv.FormatBool(mask&(1<<bit) != 0), nil
}

// effective is this process's effective set of capabilities, in hexadecimal.
func effective() (string, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
			return strings.TrimSpace(v), nil
		}
	}
	return "", errors.New("no CapEff line")
}

func osRelease() (string, error) {
	b, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
			return strings.Trim(strings.TrimSpace(v), `"`), nil
		}
	}
	return "", errors.New("no PRETTY_NAME line")
}

// device says whether a device node is there; whether it works is for who uses it.
func device(path string) (string, error) {
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "absent", nil
	case err != nil:
		return "", err
	case fi.Mode()&os.ModeDevice == 0:
		return "", fmt.Errorf("%s is no device", path)
	}
	return "present", nil
}
