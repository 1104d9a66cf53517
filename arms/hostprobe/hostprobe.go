// Package hostprobe measures the host that a run is about to use, or has used:
// what it can do (copy memory, make pages, start programs, sync files) and what
// it is busy with. Numbers of two runs mean the same only where these do.
//
// Always holds: a probe takes well under a second and leaves nothing: its file
// never has a name, its programs have ended, its memory is unmapped. What cannot
// be learnt is named with the reason, and a host of which that much is not known
// is not called quiet.
package hostprobe

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Prober of the host. It implements engine.HostProber.
type Prober struct {
	rule bench.QuietRule
	dir  string
	proc string
	sys  string
}

// New returns a prober that calls a host quiet by rule and syncs in dir.
func New(rule bench.QuietRule, dir string) Prober {
	return Prober{rule: rule, dir: dir, proc: "/proc", sys: "/sys"}
}

var _ engine.HostProber = Prober{}

const (
	// idleTime is how long the host is watched while the probe sleeps: the kernel counts in ticks of 10 ms.
	idleTime = 200 * time.Millisecond
	// copySize is more than the caches of most processors hold.
	copySize  = 32 << 20
	copies    = 3
	faultSize = 8 << 20
	execs     = 5
	syncs     = 5
)

// Probe implements engine.HostProber.
func (p Prober) Probe(ctx context.Context) bench.HostProbe {
	start := time.Now()
	out := bench.HostProbe{Unknown: map[string]string{}, Noise: []string{}}
	// Watched first: what follows is work of ours.
	p.activity(ctx, &out)
	try := func(name string, to *bench.Int64, f func(context.Context) (int64, error)) {
		v, err := f(ctx)
		if err == nil && v <= 0 {
			err = fmt.Errorf("measured %d, which is nothing", v)
		}
		if err != nil {
			out.Unknown[name] = err.Error()
			return
		}
		*to = whole(v)
	}
	try("memcpy", &out.Memcpy, memcpy)
	try("pageFault", &out.PageFault, pageFault)
	try("forkExec", &out.ForkExec, forkExec)
	try("fsync", &out.Fsync, p.fsync)
	p.settings(&out)
	out.Noise = p.noise(out)
	if len(out.Unknown) == 0 {
		out.Unknown = nil
	}
	out.Elapsed = whole(time.Since(start).Nanoseconds())
	return out
}

func whole(n int64) bench.Int64 { return bench.Int64(strconv.FormatInt(n, 10)) }

// activity watches the host while the probe sleeps.
func (p Prober) activity(ctx context.Context, out *bench.HostProbe) {
	fail := func(err error, names ...string) {
		for _, n := range names {
			out.Unknown[n] = err.Error()
		}
	}
	fs, err := procfs.NewFS(p.proc)
	if err != nil {
		fail(err, "busy", "steal", "swapping", "swapUsed", "total", "available", "load", "pressure")
		return
	}
	before, err := fs.Stat()
	pagesBefore, swapErr := p.swapped()
	if err == nil {
		select {
		case <-time.After(idleTime):
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	var after procfs.Stat
	if err == nil {
		after, err = fs.Stat()
	}
	if err != nil {
		fail(err, "busy", "steal")
	} else if busy, steal, err := shares(before.CPUTotal, after.CPUTotal); err != nil {
		fail(err, "busy", "steal")
	} else {
		out.Busy, out.Steal = share(busy), share(steal)
	}
	pagesAfter, err := p.swapped()
	if swapErr != nil || err != nil {
		fail(fmt.Errorf("read swapped pages: %w", firstError(swapErr, err)), "swapping")
	} else {
		out.Swapping = whole(pagesAfter - pagesBefore)
	}
	if m, err := fs.Meminfo(); err != nil || m.MemTotalBytes == nil || m.MemAvailableBytes == nil || m.SwapTotalBytes == nil || m.SwapFreeBytes == nil {
		fail(fmt.Errorf("read meminfo: a line is missing (%v)", err), "swapUsed", "total", "available")
	} else {
		out.SwapUsed, out.Total, out.Available = whole(int64(*m.SwapTotalBytes-*m.SwapFreeBytes)), whole(int64(*m.MemTotalBytes)), whole(int64(*m.MemAvailableBytes))
	}
	if l, err := fs.LoadAvg(); err != nil {
		fail(err, "load")
	} else {
		out.Load = fmt.Sprintf("%.2f %.2f %.2f", l.Load1, l.Load5, l.Load15)
	}
	for _, name := range []string{"cpu", "io", "memory"} {
		s, err := fs.PSIStatsForResource(name)
		if err != nil || s.Some == nil {
			fail(fmt.Errorf("read pressure: no line some (%v)", err), "pressure."+name)
			continue
		}
		if out.Pressure == nil {
			out.Pressure = map[string]string{}
		}
		out.Pressure[name] = strconv.FormatFloat(s.Some.Avg10, 'f', 2, 64)
	}
}

func firstError(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// shares of the processors' time between two readings: not idle, and stolen.
// Waiting for a disk is idle. guest time is within user time already.
func shares(a, b procfs.CPUStat) (busy, steal float64, err error) {
	sum := func(c procfs.CPUStat) float64 {
		return c.User + c.Nice + c.System + c.Idle + c.Iowait + c.IRQ + c.SoftIRQ + c.Steal
	}
	all := sum(b) - sum(a)
	if all <= 0 {
		return 0, 0, fmt.Errorf("the processors' time did not go on: %v", all)
	}
	idle := b.Idle + b.Iowait - a.Idle - a.Iowait
	steal = min(max((b.Steal-a.Steal)/all, 0), 1)
	return min(max(1-idle/all, 0), 1), steal, nil
}

func share(v float64) bench.Share { return bench.Share(strconv.FormatFloat(v, 'f', 4, 64)) }

// swapped counts pages that went to swap or came from it since the host was started.
func (p Prober) swapped() (n int64, err error) {
	text, err := os.ReadFile(p.proc + "/vmstat")
	if err != nil {
		return 0, err
	}
	found := 0
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name != "pswpin" && name != "pswpout" {
			continue
		}
		v, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("line %q: %w", line, err)
		}
		n += v
		found++
	}
	if found != 2 {
		return 0, fmt.Errorf("vmstat has %d of pswpin and pswpout", found)
	}
	return n, nil
}

// memcpy is the best of some copies: what disturbs one only makes it slower.
func memcpy(ctx context.Context) (int64, error) {
	a, err := anonymous(copySize)
	if err != nil {
		return 0, err
	}
	defer unix.Munmap(a)
	b, err := anonymous(copySize)
	if err != nil {
		return 0, err
	}
	defer unix.Munmap(b)
	for i := 0; i < copySize; i += os.Getpagesize() {
		a[i], b[i] = 1, 2
	}
	best := time.Duration(0)
	for range copies {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		start := time.Now()
		copy(b, a)
		if d := max(time.Since(start), 1); best == 0 || d < best {
			best = d
		}
	}
	return int64(float64(copySize) / best.Seconds()), nil
}

func anonymous(size int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	return b, nil
}

// pageFault is the mean over many pages, each small: a huge one would be one fault.
func pageFault(context.Context) (int64, error) {
	b, err := anonymous(faultSize)
	if err != nil {
		return 0, err
	}
	defer unix.Munmap(b)
	// EINVAL: a kernel without huge pages has none to refuse.
	if err := unix.Madvise(b, unix.MADV_NOHUGEPAGE); err != nil && err != unix.EINVAL {
		return 0, fmt.Errorf("ask for small pages: %w", err)
	}
	page := os.Getpagesize()
	start := time.Now()
	for i := 0; i < faultSize; i += page {
		b[i] = 1
	}
	return time.Since(start).Nanoseconds() / int64(faultSize/page), nil
}

func median(times []int64) int64 {
	slices.Sort(times)
	return times[len(times)/2]
}

// forkExec is the median of some starts of a program that does nothing.
func forkExec(ctx context.Context) (int64, error) {
	path, err := exec.LookPath("true")
	if err != nil {
		return 0, err
	}
	var times []int64
	for range execs {
		start := time.Now()
		if err := exec.CommandContext(ctx, path).Run(); err != nil {
			return 0, fmt.Errorf("run %s: %w", path, err)
		}
		times = append(times, time.Since(start).Nanoseconds())
	}
	return median(times), nil
}

// fsync is the median of some syncs of a page in a file without a name.
func (p Prober) fsync(ctx context.Context) (int64, error) {
	fd, err := unix.Open(p.dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return 0, fmt.Errorf("open file without a name in %s: %w", p.dir, err)
	}
	f := os.NewFile(uintptr(fd), "probe")
	defer f.Close()
	page := make([]byte, os.Getpagesize())
	var times []int64
	for i := range syncs {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		page[0] = byte(i + 1)
		if _, err := f.WriteAt(page, int64(i*len(page))); err != nil {
			return 0, err
		}
		start := time.Now()
		if err := f.Sync(); err != nil {
			return 0, err
		}
		times = append(times, max(time.Since(start).Nanoseconds(), 1))
	}
	return median(times), nil
}

// settings of the kernel that change what memory costs.
func (p Prober) settings(out *bench.HostProbe) {
	if b, err := os.ReadFile(p.sys + "/kernel/mm/transparent_hugepage/enabled"); err != nil {
		out.Unknown["thp"] = err.Error()
	} else if _, rest, ok := strings.Cut(string(b), "["); ok {
		out.Thp, _, _ = strings.Cut(rest, "]")
	} else {
		out.Unknown["thp"] = fmt.Sprintf("%q marks no word", strings.TrimSpace(string(b)))
	}
	switch b, err := os.ReadFile(p.sys + "/kernel/mm/ksm/run"); {
	case os.IsNotExist(err):
		out.Ksm = "not in this kernel"
	case err != nil:
		out.Unknown["ksm"] = err.Error()
	default:
		out.Ksm = strings.TrimSpace(string(b))
	}
}

// noise names each part of the rule that does not hold, and each that cannot be judged.
func (p Prober) noise(h bench.HostProbe) []string {
	noise := []string{}
	unknown := func(what, name string) {
		why := h.Unknown[name]
		if why == "" {
			why = "it was not read"
		}
		noise = append(noise, fmt.Sprintf("%s is not known: %s", what, why))
	}
	above := func(what, name, have, most, unit string) {
		v, err := strconv.ParseFloat(have, 64)
		bound, berr := strconv.ParseFloat(most, 64)
		switch {
		case err != nil || berr != nil:
			unknown(what, name)
		case v > bound:
			noise = append(noise, fmt.Sprintf("%s is %s%s, at most %s%s is quiet", what, have, unit, most, unit))
		}
	}
	above("share of the processors' time that others used", "busy", string(h.Busy), string(p.rule.Busy), "")
	above("share of the processors' time that the hypervisor gave to others", "steal", string(h.Steal), string(p.rule.Steal), "")
	above("pages swapped", "swapping", string(h.Swapping), strconv.FormatInt(p.rule.Swapping, 10), "")
	above("pressure of memory", "pressure.memory", h.Pressure["memory"], string(p.rule.Memory), "%")
	total, err := strconv.ParseFloat(string(h.Total), 64)
	available, aerr := strconv.ParseFloat(string(h.Available), 64)
	least, lerr := strconv.ParseFloat(string(p.rule.Available), 64)
	switch {
	case err != nil || aerr != nil || lerr != nil || total <= 0:
		unknown("available memory", "available")
	case available/total < least:
		noise = append(noise, fmt.Sprintf("share of memory that is available is %.4f, at least %s is quiet", available/total, p.rule.Available))
	}
	return noise
}

// Used implements engine.HostProber.
func (p Prober) Used() (int64, error) {
	fs, err := procfs.NewFS(p.proc)
	if err != nil {
		return 0, err
	}
	m, err := fs.Meminfo()
	switch {
	case err != nil:
		return 0, fmt.Errorf("read memory of host: %w", err)
	case m.MemTotalBytes == nil || m.MemAvailableBytes == nil:
		return 0, fmt.Errorf("%w: read memory of host: meminfo lacks MemTotal or MemAvailable", engine.ErrUnknown)
	}
	return int64(*m.MemTotalBytes) - int64(*m.MemAvailableBytes), nil
}

// Own implements engine.HostProber.
func (p Prober) Own() (int64, error) {
	fs, err := procfs.NewFS(p.proc)
	if err != nil {
		return 0, err
	}
	self, err := fs.Proc(os.Getpid())
	if err != nil {
		return 0, err
	}
	r, err := self.ProcSMapsRollup()
	if err != nil || r.Pss == 0 {
		return 0, fmt.Errorf("%w: read memory of engine: %v", engine.ErrUnknown, err)
	}
	return int64(r.PrivateDirty), nil
}
