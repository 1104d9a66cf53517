package steps

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drumsbench/drumsbench/engine/compare"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// What a guest cannot say is unknown, each thing by itself; nothing of an answer that failed is believed.
func TestInspected(t *testing.T) {
	display := &bench.Display{Width: 800, Height: 600, Depth: 24}
	probe := func() guest.Probe {
		known := func(v string) proto.Reading { return proto.Reading{Value: v, Source: "s"} }
		return guest.Probe{ServerSHA256: "d", Screen: &guest.Screen{Width: 800, Height: 600, Depth: 24},
			System: &proto.System{OS: known("o"), Kernel: known("k"), Machine: known("m"), Packages: known("p")}}
	}
	all := map[string]string{InspectServer: "d", InspectOS: "o", InspectKernel: "k", InspectMachine: "m", InspectPackages: "p", InspectDisplay: "800x600, 24 bits"}
	for _, c := range []struct {
		name    string
		change  func(*guest.Probe)
		err     error
		display *bench.Display
		want    map[string]string // of those that are not as in all; "" is unknown
	}{
		{"all", func(*guest.Probe) {}, nil, display, nil},
		{"no display", func(p *guest.Probe) { p.Screen = nil }, nil, nil, map[string]string{InspectDisplay: "none"}},
		{"display lost", func(p *guest.Probe) { p.Screen = nil }, nil, display, map[string]string{InspectDisplay: ""}},
		{"display silent", func(p *guest.Probe) { p.Screen = &guest.Screen{Unknown: "no X server"} }, nil, display, map[string]string{InspectDisplay: ""}},
		{"no depth", func(p *guest.Probe) { p.Screen.Depth = 0 }, nil, display, map[string]string{InspectDisplay: ""}},
		{"another geometry", func(p *guest.Probe) { p.Screen.Width = 640 }, nil, display, map[string]string{InspectDisplay: "640x600, 24 bits"}},
		{"no packages", func(p *guest.Probe) { p.System.Packages = proto.Reading{Unknown: "no database"} }, nil, display, map[string]string{InspectPackages: ""}},
		{"an error", func(*guest.Probe) {}, errors.New("cut off"), display,
			map[string]string{InspectServer: "", InspectOS: "", InspectKernel: "", InspectMachine: "", InspectPackages: "", InspectDisplay: ""}},
	} {
		p := probe()
		c.change(&p)
		have, want := map[string]string{}, map[string]string{}
		for name, v := range all {
			want[name] = v
		}
		for name, v := range c.want {
			want[name] = v
		}
		for _, f := range inspected(p, c.err, c.display) {
			have[f.Name] = f.Value
			if f.Known == (f.Reason != "") || f.Known != (f.Value != "" && f.Source != "") {
				t.Errorf("%s: %+v", c.name, f)
			}
		}
		if diff := cmp.Diff(want, have); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
}

// Each rollout is inspected, outside of all windows, and a comparison sees what was found.
func TestInspectSees(t *testing.T) {
	for _, c := range []struct {
		fault, reset string
		refuses      []string // facts
	}{
		{"", "restore", nil},
		{"", "cold", nil},
		{"unknown-system", "restore", []string{"guest-packages"}},
		{"other-system@4", "restore", []string{"guest-os"}}, // one rollout of five
		{"other-system@2", "cold", []string{"guest-os"}},
	} {
		m := workload()
		if c.fault != "" {
			m.Arms.Fake.Faults = []string{c.fault}
		}
		r := execute(t, m, c.reset)
		data, err := json.Marshal(r.record)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(r.dir, record.RecordFile), data, 0o600); err != nil {
			t.Fatal(err)
		}
		run, err := compare.Load(r.dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range run.Plan.Steps {
			if s.Kind == KindInspect && s.Window != "" {
				t.Errorf("%s is in window %s", s.Id, s.Window)
			}
		}
		result, err := compare.Compare([]compare.Run{run}, compare.Options{})
		if err != nil {
			t.Fatal(err)
		}
		// A run of this test has no facts of the host.
		inspects := map[string]bool{"guest-server": true, "guest-os": true, "guest-packages": true, "guest-kernel": true, "guest-machine": true, "display": true}
		var refuses []string
		for _, f := range result.Comparisons[0].Facts {
			if inspects[string(f.Name)] && f.Refuses {
				refuses = append(refuses, string(f.Name))
			}
		}
		if diff := cmp.Diff(c.refuses, refuses); diff != "" {
			t.Errorf("%s %s: %s\n%+v", c.fault, c.reset, diff, result.Comparisons[0].Facts)
		}
	}
}
