package image

import (
	"context"
	"os"
	"path/filepath"
	"slices"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Inspection is what can be said of an image file.
type Inspection struct {
	Path string `json:"path"`
	// Format by the magic number: "qcow2", or empty for another one.
	Format string       `json:"format"`
	Size   int64        `json:"size"`
	SHA256 bench.SHA256 `json:"sha256"`
	// Pins are the names of the pins with this digest. Without one, nothing below is known.
	Pins []string `json:"pins"`
	// VirtualSize of the disk in bytes.
	VirtualSize int64 `json:"virtualSize,omitempty"`
	// Filesystem of the disk itself; empty where it has partitions.
	Filesystem string      `json:"filesystem,omitempty"`
	Partitions []Partition `json:"partitions,omitempty"`
	// Root is the partition that the rest was read from, 0 for the disk itself.
	Root int `json:"root"`
	// Guestd is the digest of the guest server inside; unknown with a reason where there is none.
	Guestd bench.Fact `json:"guestd"`
}

// Inspect looks at an image file. Only a file whose digest is one of the pins is
// parsed: of another one, size, digest and magic number are all that is told.
// Nothing is mounted; scratch files lie in work and are removed.
func Inspect(ctx context.Context, path string, pins map[string]bench.SHA256, work, cacheDir string) (Inspection, error) {
	h := hashes{filepath.Join(cacheDir, "digests")}
	const unpinned = "no pin has this digest, and what is not pinned is not parsed"
	i := Inspection{Path: path, Pins: []string{}, Guestd: engine.Unknown[string](unpinned, engine.ViewHost).Fact("guestd")}
	f, err := os.Open(path)
	if err != nil {
		return i, &engine.Error{Op: "inspect image", Err: err}
	}
	defer f.Close()
	d, err := h.of(ctx, f)
	if err != nil {
		return i, err
	}
	i.Size, i.SHA256 = d.Identity.Size, d.SHA256
	if isQcow2(f) {
		i.Format = "qcow2"
	}
	for name, pin := range pins {
		if pin == d.SHA256 {
			i.Pins = append(i.Pins, name)
		}
	}
	slices.Sort(i.Pins)
	if len(i.Pins) == 0 {
		return i, nil
	}
	image, v, err := openVerified(ctx, path, d.SHA256, h, nil)
	if err != nil {
		return i, err
	}
	defer image.Close()
	i.VirtualSize = v.VirtualSize
	return i, i.lookInside(ctx, image, work)
}

// lookInside reads partitions, file system and guest server through a raw copy.
func (i *Inspection) lookInside(ctx context.Context, image *os.File, work string) error {
	const op = "look into image"
	if err := os.MkdirAll(work, 0o700); err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	scratch, done, err := newScratch(work, i.VirtualSize)
	if err != nil {
		return err
	}
	defer done()
	raw := filepath.Join(scratch, "disk.raw")
	m := &Mounted{}
	if err := m.qemuImg(ctx, op, image, "convert", "--force-share", "-f", "qcow2", "-O", "raw", passed(0), raw); err != nil {
		return err
	}
	disk, err := os.Open(raw)
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	defer disk.Close()
	if i.Filesystem, err = filesystemAt(disk, 0); err != nil {
		return err
	}
	if i.Filesystem == "" {
		if i.Partitions, err = partitions(disk); err != nil {
			return err
		}
	}
	offset, found := int64(0), i.Filesystem == "ext4"
	var largest int64
	for _, p := range i.Partitions { // the root file system is the largest one in every image that is in use
		if p.Filesystem == "ext4" && p.Size > largest {
			offset, largest, i.Root, found = p.Start, p.Size, p.Number, true
		}
	}
	if !found {
		i.Guestd = engine.Unknown[string]("there is no ext4 file system", engine.ViewHost).Fact("guestd")
		return nil
	}
	guestd, err := digestInside(ctx, raw, offset, GuestdPath)
	if err != nil {
		i.Guestd = engine.Unknown[string](err.Error(), engine.ViewHost).Fact("guestd")
		return nil
	}
	i.Guestd = engine.Known(guestd, GuestdPath, engine.ViewHost).Fact("guestd")
	return nil
}
