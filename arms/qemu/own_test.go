package qemu

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/digitalocean/go-qemu/qmp"

	ours "github.com/drumsbench/drumsbench/arms/qmp"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// QEMU's own time goes from the first event to the one that ends it; where that did not come it is unknown.
func TestOwnTime(t *testing.T) {
	event := func(name, status string, seconds, micros int64) qmp.Event {
		e := qmp.Event{Event: name, Data: map[string]any{"status": status}}
		e.Timestamp.Seconds, e.Timestamp.Microseconds = seconds, micros
		return e
	}
	other := event("STOP", "", 1, 0)
	for name, c := range map[string]struct {
		seen        []qmp.Event
		value, says string
	}{
		"whole":       {[]qmp.Event{other, event(migrationEvent, "setup", 10, 999_000), event(migrationEvent, "active", 11, 0), event(migrationEvent, "completed", 11, 4_250)}, "5250000", ""},
		"failed":      {[]qmp.Event{event(migrationEvent, "setup", 10, 0), event(migrationEvent, "failed", 11, 0)}, "", "no event MIGRATION with the status completed"},
		"none":        {[]qmp.Event{other}, "", "no event MIGRATION"},
		"backwards":   {[]qmp.Event{event(migrationEvent, "setup", 10, 0), event(migrationEvent, "completed", 9, 0)}, "", "went back"},
		"another one": {[]qmp.Event{event(jobEvent, "created", 10, 0), event(jobEvent, "completed", 11, 0)}, "", "no event MIGRATION"},
	} {
		f := ownTime("load", migrationEvent, "completed", c.seen)
		if f.Name != "tool.qemu.load-ns" || f.Value != c.value || f.Known != (c.value != "") || !strings.Contains(f.Reason, c.says) || !f.Known && f.Reason == "" {
			t.Errorf("%s: %+v", name, f)
		}
	}
	n := int64(7)
	if f := sent("save", &n); !f.Known || f.Value != "7" {
		t.Errorf("%+v", f)
	}
	if f := sent("save", nil); f.Known || f.Reason == "" {
		t.Errorf("%+v", f)
	}
}

// The event that ends a load may come after the reply by which the load is known to be complete (QEMU 10 does so); a
// QEMU that goes away meanwhile makes the time unknown.
func TestWatch(t *testing.T) {
	for name, late := range map[string]bool{"late": true, "gone": false} {
		here, there := net.Pipe()
		go func() {
			defer there.Close()
			fmt.Fprintln(there, `{"QMP": {"version": {"qemu": {"major": 10}, "package": ""}, "capabilities": []}}`)
			for in := bufio.NewScanner(there); in.Scan(); {
				var q struct{ Execute, ID string }
				if json.Unmarshal(in.Bytes(), &q) != nil {
					return
				}
				fmt.Fprintf(there, `{"return": {}, "id": %q}`+"\n", q.ID)
				if q.Execute != "migrate-incoming" {
					continue
				}
				fmt.Fprintln(there, `{"event": "MIGRATION", "data": {"status": "setup"}, "timestamp": {"seconds": 5, "microseconds": 10}}`)
				if !late {
					return
				}
				time.Sleep(20 * time.Millisecond)
				fmt.Fprintln(there, `{"event": "MIGRATION", "data": {"status": "completed"}, "timestamp": {"seconds": 5, "microseconds": 35}}`)
			}
		}()
		m, err := ours.Open(t.Context(), here, ours.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var facts []bench.Fact
		tn := &tenancy{mon: monitor{qmp: m}}
		err = tn.timed(t.Context(), "load", migrationEvent, "completed", &facts, func() error { return tn.execute(t.Context(), "migrate-incoming", nil, nil) })
		if err != nil || len(facts) != 1 || facts[0].Known != late || late && facts[0].Value != "25000" || !late && facts[0].Reason == "" {
			t.Errorf("%s: %+v, %v", name, facts, err)
		}
		if err := m.Disconnect(); err != nil {
			t.Error(err)
		}
	}
}
