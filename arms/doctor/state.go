package doctor

import (
	"context"
	"fmt"

	"github.com/docker/go-units"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

const elsewhere = "name another state directory with --state or DRUMSBENCH_STATE"

// stateDirectory is there or can be made, and can be written to.
func stateDirectory(_ context.Context, h *Host) []bench.HostFinding {
	dir, err := h.nearest()
	if err != nil {
		return unread(Unknown, "state", err)
	}
	m, err := h.mountOf(dir)
	if err != nil {
		return unread(Unknown, "state", err)
	}
	if err := h.Write(dir); err != nil {
		return one(Lack, "state", fmt.Sprintf("nothing can be written in %s: %v", dir, err), "make it writable, or "+elsewhere)
	}
	var found []bench.HostFinding
	if flags(m.Options)["noexec"] {
		found = append(found, one(Lack, "state", h.State+" is on a mount that executes nothing, and the private criu lies there", "mount -o remount,exec "+m.Mountpoint+", or "+elsewhere)...)
	}
	if flags(m.Options)["nodev"] {
		found = append(found, one(Warn, "state", h.State+" is on a mount without device nodes: a slot's own nodes outside of /dev do not open", "mount -o remount,dev "+m.Mountpoint+", or "+elsewhere)...)
	}
	if found != nil {
		return found
	}
	if dir != h.State {
		return fine("state", "%s can be made, on %s", h.State, m.FSType)
	}
	return fine("state", "%s, on %s", h.State, m.FSType)
}

// What a small image, its raw copy, a checkpoint and a few slots' layers take,
// and what one is comfortable with.
const (
	leastBytes = 1 << 30
	easyBytes  = 4 << 30
	leastFiles = 10000
)

func space(_ context.Context, h *Host) []bench.HostFinding {
	dir, err := h.nearest()
	if err != nil {
		return unread(Unknown, "space", err)
	}
	s, err := h.Space(dir)
	if err != nil {
		return unread(Unknown, "space", err)
	}
	const remedy = "make room: old runs, their checkpoints and the cache lie below the state directory; or " + elsewhere
	free := units.BytesSize(float64(s.Bytes))
	switch {
	case s.Bytes < leastBytes:
		return one(Lack, "space", fmt.Sprintf("%s are free below %s; an image, its raw copy and a checkpoint take about 1GiB", free, dir), remedy)
	case !s.Unlimited && s.Files < leastFiles:
		return one(Lack, "space", fmt.Sprintf("the file system of %s can hold %d more files; the tree that an image is made from has tens of thousands", dir, s.Files), remedy)
	case s.Bytes < easyBytes:
		return one(Warn, "space", fmt.Sprintf("%s are free below %s: enough for a small image and few runs", free, dir), remedy)
	}
	return fine("space", "%s are free below %s", free, dir)
}

// overlayfs tries one as a slot has it, on the file system that slots' upper layers lie on.
func overlayfs(_ context.Context, h *Host) []bench.HostFinding {
	dir, err := h.nearest()
	if err != nil {
		return unread(Unknown, "overlayfs", err)
	}
	if err := h.Overlay(dir); err != nil {
		remedy := "use a kernel with CONFIG_OVERLAY_FS of 5.13 or newer, and load its module: modprobe overlay"
		text := "an overlay as a slot has it does not work: " + err.Error()
		if m, merr := h.mountOf(dir); merr == nil && !carriesUpper[m.FSType] {
			text += "; the state directory is on " + m.FSType
			remedy = "put the state directory on ext4, xfs, btrfs or tmpfs: " + elsewhere + "; else " + remedy
		}
		return one(Lack, "overlayfs", text, remedy)
	}
	return fine("overlayfs", "an overlay as a slot has it works below %s", dir)
}

// carriesUpper are file systems that are known to hold an upper layer; the probe decides, this only explains.
var carriesUpper = map[string]bool{"ext4": true, "ext3": true, "xfs": true, "btrfs": true, "tmpfs": true, "f2fs": true}
