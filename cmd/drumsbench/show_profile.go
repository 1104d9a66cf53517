package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/profile"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/terminal"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// profileOf says where the time of a run's resets went. The run's directory was verified.
func profileOf(r shownRun) (bench.Profile, error) {
	var plan bench.Plan
	b, err := record.ReadRegular(filepath.Join(r.dir, record.PlanFile))
	if err == nil {
		err = json.Unmarshal(b, &plan)
	}
	if err != nil {
		return bench.Profile{}, &engine.Error{Op: "read plan", Err: err}
	}
	receipts, _, err := record.ReadEvents(r.dir)
	if err != nil {
		return bench.Profile{}, &engine.Error{Op: "read events", Err: err}
	}
	return profile.Of(r.record, plan, receipts), nil
}

// printProfiles prints where the time of each run's resets went; of a run that is
// not sound or did not pass only that.
func printProfiles(g *globals, runs []shownRun) error {
	profiles := []bench.Profile{}
	var b strings.Builder
	for i, r := range runs {
		if i > 0 {
			b.WriteString("\n")
		}
		if !r.counts() {
			fmt.Fprintf(&b, "%s: %s; no number comes of it\n", terminal.Line(r.record.Run), r.verdict())
		}
		if r.state.State != runSound {
			continue
		}
		p, err := profileOf(r)
		if err != nil {
			return err
		}
		profiles = append(profiles, p)
		if r.counts() {
			writeProfile(&b, p)
		}
	}
	if g.json() {
		return printJSON(g.Stdout, profiles)
	}
	return printText(g.Stdout, b.String())
}

func writeProfile(b *strings.Builder, p bench.Profile) {
	name := terminal.Line(p.Run)
	if p.Emulated {
		name += " (emulated)"
	}
	fmt.Fprintf(b, "%s: %s of n %d resets, ms\n", name, p.Reset, p.N)
	if p.N == 0 {
		b.WriteString("no reset was measured from its start until the slot was ready\n")
		return
	}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "PART\tOWNER\tP50\tSHARE\tN\tWHAT")
	for _, k := range p.Parts {
		p50, share, text := "unknown", "", k.Text
		if k.P50 != nil {
			p50 = millis(*k.P50)
		}
		if k.Share != nil {
			share = fmt.Sprintf("%.1f%%", 100**k.Share)
		}
		if k.Reason != "" {
			text = "not known: " + k.Reason
		}
		row(t, terminal.Line(k.Name), k.Owner, p50, share, strconv.FormatInt(k.N, 10), terminal.Line(text))
	}
	row(t, "whole", "", millis(p.Whole), "100.0%", strconv.FormatInt(p.N, 10), "from the start of the reset until the slot is usable")
	t.Flush()
	b.WriteString("shares are of the sums over all resets, so they add up; medians do not\n")
}

func millis(e bench.Estimate) string {
	if e.Value == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f", *e.Value/ms)
}
