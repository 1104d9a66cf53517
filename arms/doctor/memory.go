package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// hugepages: how memory is filled decides much of a restore's time.
func hugepages(_ context.Context, h *Host) []bench.HostFinding {
	text, err := h.read("/sys/kernel/mm/transparent_hugepage/enabled")
	switch {
	case absent(err):
		return fine("hugepages", "the kernel has no transparent huge pages")
	case err != nil:
		return unread(Warn, "hugepages", err)
	case strings.Contains(text, "[always]"):
		return one(Warn, "hugepages", "transparent huge pages are on for all memory: a restored slot, whose memory is filled page by page, gets others than a cold one",
			"echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
	}
	return fine("hugepages", "%s", text)
}

// ksm merges pages of slots behind their backs.
func ksm(_ context.Context, h *Host) []bench.HostFinding {
	text, err := h.read("/sys/kernel/mm/ksm/run")
	switch {
	case absent(err):
		return fine("ksm", "the kernel has none")
	case err != nil:
		return unread(Warn, "ksm", err)
	case text == "1":
		return one(Warn, "ksm", "equal pages are being merged: memory of slots is counted too low, and the daemon takes time from measurements", "echo 2 > /sys/kernel/mm/ksm/run")
	}
	return fine("ksm", "off")
}

func swap(_ context.Context, h *Host) []bench.HostFinding {
	text, err := h.read("/proc/swaps")
	switch {
	case absent(err):
		return fine("swap", "the kernel has none")
	case err != nil:
		return unread(Warn, "swap", err)
	}
	devices := strings.Split(text, "\n")[1:]
	if len(devices) == 0 {
		return fine("swap", "none")
	}
	var names []string
	for _, line := range devices {
		if fields := strings.Fields(line); len(fields) > 0 {
			names = append(names, fields[0])
		}
	}
	return one(Warn, "swap", fmt.Sprintf("swap is on (%s): the image, checkpoints and the tools may be swapped out in the middle of a measurement, whatever a slot's own bound is", strings.Join(names, ", ")), "swapoff -a")
}
