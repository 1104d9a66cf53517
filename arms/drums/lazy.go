package drums

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/drumsbench/drumsbench/arms/drums/pages"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/checkpoint"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// workingSet is the setting with which a slot's memory comes back while it runs.
const workingSet = "workingSet"

// zerosLeft is the setting with which checkpoints hold no pages of zeros.
const zerosLeft = "left"

// filler is the arm's server of pages, started when the first slot needs it.
type filler struct {
	mu     sync.Mutex
	server *pages.Server
}

// pageServer is the one that serves all slots of the run; one that has ended is replaced, its slots are dead.
func (a *Arm) pageServer(ctx context.Context, ws *engine.Workspace) (*pages.Server, error) {
	a.filler.mu.Lock()
	defer a.filler.mu.Unlock()
	if s := a.filler.server; s != nil {
		if s.Alive() {
			return s, nil
		}
		if err := s.Close(ctx); err != nil {
			return nil, err
		}
		a.filler.server = nil
	}
	tools, err := a.groups.Open(ws)
	if err != nil {
		return nil, err
	}
	s, err := pages.Start(ws.Ledger, tools.FD(), tools.Path())
	if err == nil {
		a.filler.server = s
	}
	return s, err
}

func (a *Arm) endPageServer(ctx context.Context) error {
	a.filler.mu.Lock()
	defer a.filler.mu.Unlock()
	if a.filler.server == nil {
		return nil
	}
	err := a.filler.server.Close(ctx)
	if err == nil {
		a.filler.server = nil
	}
	return err
}

// fillLazily has the server take the slot that criu is about to restore in work; nil where criu fills all memory.
func (p *place) fillLazily(ctx context.Context, cp engine.Checkpoint, images, work string) (*pages.Slot, error) {
	if p.arm.settings.Pages != workingSet {
		return nil, nil
	}
	server, err := p.arm.pageServer(ctx, p.ws)
	if err != nil {
		return nil, err
	}
	group := p.group
	return server.Slot(ctx, pages.Options{Images: images, Work: work, Set: filepath.Join(cp.Dir, checkpoint.WorkingSetFile), Kill: func() error {
		ctx, cancel := context.WithTimeout(context.Background(), lostTime)
		defer cancel()
		return group.Kill(ctx)
	}})
}

// lostTime bounds the killing of a slot that nobody fills any more.
const lostTime = 10 * time.Second

// endPages lets go of a tenancy's pages, once its tree is dead or complete. What the first restore of a checkpoint
// touched is kept beside it.
func (t *tenancy) endPages(ctx context.Context) error {
	if t == nil || t.pages == nil {
		return nil
	}
	set := ""
	if t.From != nil {
		set = filepath.Join(t.From.Dir, checkpoint.WorkingSetFile)
	}
	stats, err := t.pages.End(ctx, set)
	if err == nil {
		t.filled = &stats
		t.pages = nil
	}
	return err
}

// completePages brings all that is missing and requires, of the kernel, that it watches no mapping of the tree any
// more: a dump would write zeros for pages that are missing, and return 0.
func (t *tenancy) completePages(ctx context.Context) error {
	if t == nil || t.pages == nil {
		return nil
	}
	defer engine.StartSpan(ctx, "pages")()
	if _, err := t.pages.Complete(ctx); err != nil {
		return fmt.Errorf("%w: not every page is there: %w", engine.ErrRefused, err)
	}
	if err := unwatched(t.Pid); err != nil {
		return err
	}
	return t.endPages(ctx)
}

// unwatched requires that every page of a tree is the kernel's own affair.
func unwatched(pid int) error {
	tasks, err := procfs.Tasks(pid)
	if err != nil {
		return err
	}
	for _, task := range tasks {
		if task.Zombie() {
			continue
		}
		watched, err := pages.Watched(task.Pid)
		if err != nil {
			return fmt.Errorf("%w: mappings of pid %d: %w", engine.ErrUnknown, task.Inner, err)
		}
		if watched {
			return fmt.Errorf("%w: pages of pid %d are filled by userfaultfd still", engine.ErrRefused, task.Inner)
		}
	}
	return nil
}

// BecameReady implements engine.Filling.
func (s *slot) BecameReady(ctx context.Context) error {
	t := s.now
	if t == nil || t.pages == nil {
		return nil
	}
	record, err := time.ParseDuration(string(s.arm.settings.RecordFor))
	if err != nil {
		return err
	}
	return t.pages.Ready(ctx, record)
}

// PageFacts implements engine.Filling.
func (s *slot) PageFacts(ctx context.Context) []bench.Fact {
	t := s.now
	if t == nil || t.pages == nil {
		return nil
	}
	stats, err := t.pages.Stats(ctx)
	return pageFacts(stats, err)
}

func pageFacts(s pages.Stats, err error) (facts []bench.Fact) {
	const source = "the server of pages"
	add := func(name string, n int64) {
		f := engine.Known(strconv.FormatInt(n, 10), source, engine.ViewHost).Fact("pages." + name)
		if err != nil {
			f = engine.Unknown[string](err.Error(), engine.ViewHost).Fact("pages." + name)
		}
		facts = append(facts, f)
	}
	add("lazy", s.Lazy)
	add("set", s.Set)
	add("first", s.First)
	add("pushed", s.Pushed)
	add("faults", s.Faults)
	add("around", s.Around)
	add("zeros", s.Zeros)
	add("missing", s.Missing)
	add("tasks", s.Tasks)
	add("serve-ns", s.ServeNS)
	if s.PushNS >= 0 || err != nil {
		add("set-there-ns", s.PushNS)
	}
	return facts
}

// lost is nil, or why nobody fills the tenancy's pages.
func (t *tenancy) lost() error {
	if t == nil || t.pages == nil {
		return nil
	}
	return t.pages.Lost()
}

// withFiller adds to a slot's memory that of the server, which all slots of the run share.
func (a *Arm) withFiller(r engine.Reading[engine.Memory]) engine.Reading[engine.Memory] {
	a.filler.mu.Lock()
	server := a.filler.server
	a.filler.mu.Unlock()
	m, known := r.Get()
	if !known || server == nil || !server.Alive() {
		return r
	}
	beside, known := procfs.ReadMemory([]int{server.Pid()}).Get()
	if !known {
		return engine.Unknown[engine.Memory]("memory of the server of pages: it cannot be read", engine.ViewHost)
	}
	m.Harness += beside.PrivateDirty
	return engine.Known(m, r.Source(), engine.ViewHost)
}

// restored waits for the end of criu's part of a slot whose pages come later.
func (t *tenancy) restored(ctx context.Context) error {
	if t.pages == nil {
		return nil
	}
	return t.pages.Restored(ctx, t.Pid)
}
