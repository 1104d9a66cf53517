package steps

import (
	"context"
	"fmt"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// FactCacheDrop is what was dropped, the JSON of bench.CacheDrop.
const FactCacheDrop = "page-cache"

// PageCacheDropped is the value of experiment.pageCache under which plans have such steps.
const PageCacheDropped = "dropped"

// DropCache empties the page cache of what a reset reads: image and, where there is
// one, checkpoint. The slot that is in the place is ended first, since what a
// process has mapped stays. It is outside of every window and clock.
func DropCache(b *engine.Builder, at At, root engine.Promise[engine.Root], cp engine.Promise[engine.Checkpoint], place engine.Promise[engine.Place], after ...engine.Input) engine.Promise[engine.Measured] {
	at.Window = ""
	in := append([]engine.Input{engine.Read(root), engine.Read(cp), engine.Use(place)}, after...)
	return engine.Add[engine.Measured](b, at.spec(KindDropCache, bench.DropCacheParams{}, deadlineDropCache), in...)
}

var bindDropCache = engine.Bind(KindDropCache, func(ctx context.Context, x *engine.Exec, _ bench.DropCacheParams) (engine.Measured, error) {
	const op = "drop page cache"
	cache := x.Workspace().Cache
	root, ok := engine.In[engine.Root](x, 0).(engine.Cached)
	if cache == nil || !ok {
		return engine.Measured{}, &engine.Error{Op: op, Err: fmt.Errorf("%w: nobody knows what the %s arm reads through it", engine.ErrRefused, x.Arm().Describe().Kind), Hint: `leave experiment.pageCache out`}
	}
	paths, err := root.CachePaths()
	if err != nil {
		return engine.Measured{}, err
	}
	if cp := engine.In[engine.Checkpoint](x, 1); cp.Dir != "" {
		paths = append([]string{cp.Dir}, paths...)
	}
	if place := engine.In[engine.Place](x, 2); place != nil {
		if err := place.Vacate(ctx); err != nil {
			return engine.Measured{}, err
		}
	}
	d, err := cache.Drop(ctx, paths)
	if err != nil {
		return engine.Measured{}, err
	}
	fact(x, FactCacheDrop, d, "mincore(2) before and after posix_fadvise(2)")
	x.Judge(judgeDrop(d))
	return engine.Measured{}, nil
})

// judgeDrop does not know what a reset reads from the disk where pages are left.
func judgeDrop(d bench.CacheDrop) (j engine.Judgement) {
	if d.Left == "0" && d.Files > 0 {
		return j
	}
	f := j.Add(engine.VerdictUnknown, "page cache", fmt.Sprintf("%s bytes of %d files are still in memory", d.Left, d.Files))
	f.Have, f.Hint = strings.Join(d.Held, " "), "find out which process has the files mapped; they have to lie on a disk"
	return j
}
