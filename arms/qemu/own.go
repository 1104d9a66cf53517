package qemu

import (
	"context"
	"fmt"
	"time"

	"github.com/digitalocean/go-qemu/qmp"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// QEMU's own times of what it saves and loads stand beside the engine's. It gives
// each of its events the time at which it came to pass, in microseconds: a migration
// says when it begins and when it is complete, a job likewise.

// eventsOn is the capability of a migration that tells of its states by events.
const eventsOn = "events"

// Events of a migration and of a job, with the member that has the state.
const (
	migrationEvent = "MIGRATION"
	jobEvent       = "JOB_STATUS_CHANGE"
)

// eventWait is how long an event may be behind what a command told: another thread of
// QEMU sends it. It is waited for only where it is not there yet.
const eventWait = 10 * time.Second

// ear listens to QEMU while it saves or loads.
type ear struct {
	name, event, ends string
	events            <-chan qmp.Event
	stop              context.CancelFunc
}

// listen begins to, for QEMU's own time from the first of its events to the one
// whose state is ends. Call told or stop once.
func (t *tenancy) listen(ctx context.Context, name, event, ends string) (*ear, error) {
	listening, stop := context.WithCancel(ctx)
	events, err := t.mon.qmp.Events(listening)
	if err != nil {
		stop()
		return nil, err
	}
	return &ear{name, event, ends, events, stop}, nil
}

// told is the fact. An end that did not come makes it unknown, and no failure: what
// was saved or loaded is read back by others.
func (w *ear) told() bench.Fact {
	defer w.stop()
	late := time.NewTimer(eventWait)
	defer late.Stop()
	var seen []qmp.Event
	for {
		select {
		case e, open := <-w.events:
			if !open {
				return ownTime(w.name, w.event, w.ends, seen)
			}
			seen = append(seen, e)
			if e.Event == w.event && e.Data["status"] == w.ends {
				return ownTime(w.name, w.event, w.ends, seen)
			}
		case <-late.C:
			return ownTime(w.name, w.event, w.ends, seen)
		}
	}
}

// timed has do save, and adds QEMU's own time of it to facts.
func (t *tenancy) timed(ctx context.Context, name, event, ends string, facts *[]bench.Fact, do func() error) error {
	w, err := t.listen(ctx, name, event, ends)
	if err != nil {
		return err
	}
	if err := do(); err != nil {
		w.stop()
		return err
	}
	*facts = append(*facts, w.told())
	return nil
}

// ownTime is the fact tool.qemu.NAME-ns.
func ownTime(name, event, ends string, seen []qmp.Event) bench.Fact {
	f := bench.Fact{Name: "tool.qemu." + name + "-ns", View: engine.ViewHost}
	var first, last time.Time
	for _, e := range seen {
		if e.Event != event {
			continue
		}
		at := time.UnixMicro(e.Timestamp.Seconds*1e6 + e.Timestamp.Microseconds)
		if first.IsZero() {
			first = at
		}
		if e.Data["status"] == ends {
			last = at
		}
	}
	switch {
	case first.IsZero() || last.IsZero():
		f.Reason = fmt.Sprintf("QEMU sent no event %s with the status %s", event, ends)
	case last.Before(first):
		f.Reason = "QEMU's clock went back meanwhile"
	default:
		f.Known, f.Value, f.Source = true, fmt.Sprint(last.Sub(first).Nanoseconds()), "QMP events "+event
	}
	return f
}

// sent is the fact tool.qemu.NAME-bytes, from query-migrate.
func sent(name string, bytes *int64) bench.Fact {
	f := bench.Fact{Name: "tool.qemu." + name + "-bytes", View: engine.ViewHost}
	if bytes == nil {
		f.Reason = "query-migrate has no ram.transferred"
		return f
	}
	f.Known, f.Value, f.Source = true, fmt.Sprint(*bytes), "query-migrate"
	return f
}
