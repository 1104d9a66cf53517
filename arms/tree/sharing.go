package tree

import (
	"path/filepath"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Facts of a checkpoint: what was asked for of its tasks' shared pages, what of the images was corrected for it, and
// what the tree took of the host's memory while it stood still. What came of it are the facts of each restore
// (tool.criu.pages-left: pages that CRIU left shared) and of each measure step (memory.private_dirty, memory.pss).
const (
	sharingAsked     = "sharing.requested"
	sharingCorrected = "sharing.corrected-mappings"
	sharingBytes     = "sharing.corrected-bytes"
	dumpedDirty      = "dumped.private_dirty"
	dumpedPss        = "dumped.pss"
)

// keepSharing corrects the images in a checkpoint's folder, where that is asked for; it comes before they are hashed.
func (d Dumped) keepSharing(dir string) ([]bench.Fact, error) {
	const view = engine.ViewStopped
	facts := []bench.Fact{engine.Known(d.Sharing, "the arm's settings", view).Fact(sharingAsked)}
	if d.Sharing == "kept" {
		done, err := criu.KeepSharing(filepath.Join(dir, ImagesDir))
		if err != nil {
			return nil, err
		}
		const source = "criu images, read back after the correction"
		facts = append(facts,
			engine.Known(done.Renamed+done.Unmarked+done.Cut, source, view).Fact(sharingCorrected),
			engine.Known(done.Bytes, source, view).Fact(sharingBytes))
	}
	m, known := d.Census.Memory.Get()
	dirty, pss := engine.Unknown[int64](d.Census.Memory.Reason(), view), engine.Unknown[int64](d.Census.Memory.Reason(), view)
	if known {
		dirty, pss = engine.Known(m.PrivateDirty, d.Census.Memory.Source(), view), engine.Known(m.Pss, d.Census.Memory.Source(), view)
	}
	return append(facts, dirty.Fact(dumpedDirty), pss.Fact(dumpedPss)), nil
}

// SharingDifference declares the correction of images.
func SharingDifference(setting string) []bench.Difference {
	if setting != "kept" {
		return nil
	}
	return []bench.Difference{{Name: "sharing",
		Text: "private mappings of files in CRIU's images are corrected before a checkpoint is sealed, their numbers of files and where they are cut, so that restored tasks share the pages that they shared at the dump; what the pages hold is not touched"}}
}
