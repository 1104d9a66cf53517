package fake

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// hostThing is a thing on the host that the fake arm has in memory.
type hostThing struct {
	value string
	ours  bool
}

// meddle plants what the run's knobs do to the host, beside the image's mount.
func (a *Arm) meddle() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.faults.run("leaves-process") {
		a.host["process 1073742007"] = hostThing{"holder, state S, child of 1", true}
	}
	if a.faults.run("host-changed") {
		a.host["sysctl net.ipv4.ip_forward"] = hostThing{"1", true}
	}
	if a.faults.run("host-busy") {
		a.host["mount /mnt/stick"] = hostThing{"vfat /dev/sdb1 of /", false}
	}
}

// survey is the host before a run: what the arm has in memory, and the run's scratch directory.
type survey struct {
	arm    *Arm
	work   string
	before map[string]hostThing
}

// Survey implements engine.Surveyor.
func (a *Arm) Survey(ctx context.Context, ws *engine.Workspace) (engine.Survey, error) {
	if err := ctx.Err(); err != nil {
		return nil, &engine.Error{Op: "look at host", Err: err}
	}
	if a.faults.run("unknown-survey") {
		return nil, &engine.Error{Op: "look at host", Err: fmt.Errorf("%w: links: operation not permitted", engine.ErrUnknown)}
	}
	s := survey{arm: a, work: ws.Work}
	var err error
	s.before, err = s.look()
	return s, err
}

func (s survey) look() (map[string]hostThing, error) {
	s.arm.mu.Lock()
	things := maps.Clone(s.arm.host)
	s.arm.mu.Unlock()
	entries, err := os.ReadDir(s.work)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, &engine.Error{Op: "look at host", Err: fmt.Errorf("%w: %w", engine.ErrUnknown, err)}
	}
	for _, e := range entries {
		if e.Name() == engine.WhoseFile { // the directory's own
			continue
		}
		things["file "+e.Name()] = hostThing{"in " + s.work, true}
	}
	return things, nil
}

// Facts implements engine.Survey.
func (s survey) Facts() []bench.Fact {
	return []bench.Fact{{Name: "host-things", Known: true, Value: fmt.Sprint(len(s.before)), Source: "engine", View: engine.ViewHost}}
}

// Compare implements engine.Survey.
func (s survey) Compare(ctx context.Context) ([]bench.Finding, error) {
	if err := ctx.Err(); err != nil {
		return nil, &engine.Error{Op: "look at host", Err: err}
	}
	if s.arm.faults.run("unknown-cleanup") {
		return nil, &engine.Error{Op: "look at host", Err: fmt.Errorf("%w: processes: input/output error", engine.ErrUnknown)}
	}
	after, err := s.look()
	if err != nil {
		return nil, err
	}
	all := maps.Clone(s.before)
	maps.Copy(all, after)
	found := []bench.Finding{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		old, was := s.before[name]
		now, is := after[name]
		if was == is && old == now {
			continue
		}
		f := bench.Finding{Verdict: engine.Fail, Subject: name, Text: "is not as it was", Want: old.value, Have: now.value}
		if !old.ours && !now.ours {
			f.Verdict, f.Text = engine.Pass, "is not as it was (foreign)"
		}
		found = append(found, f)
	}
	return found, nil
}
