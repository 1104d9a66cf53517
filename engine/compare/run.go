// Package compare decides whether runs may be compared, and compares them.
//
// A comparison exists only where every fact that schemas/bench/sameness.cue lists
// is known on both sides and is as the rule for that kind of comparison asks;
// everything else is a refusal that says which fact is missing or different and
// how to learn it. There is no way around it.
//
// Always holds: an unknown fact equals nothing, itself included; a refused
// comparison has no number; numbers come from records of runs that passed, from
// rollouts that are neither warm-ups nor controls; which side is named first
// changes which is called A, and nothing else.
package compare

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Run is what a comparison reads of a run's directory.
type Run struct {
	Dir      string
	Record   bench.Record
	Manifest bench.Manifest
	Plan     bench.Plan
	// Steps has the receipt of each step of the plan that has one.
	Steps map[string]bench.Receipt
}

// Load reads a run. The directory has to have been found sound (record.Verify):
// nothing is checked here but each file's schema, and that each says all that it
// is read for. ErrUnknown for a manifest that leaves a default unsaid: the
// program that wrote it may have had another one, or no such thing.
func Load(dir string) (Run, error) {
	r := Run{Dir: dir, Steps: map[string]bench.Receipt{}}
	for _, f := range []struct {
		name, definition string
		into             any
	}{
		{record.RecordFile, "Record", &r.Record}, {record.ManifestFile, "Manifest", &r.Manifest}, {record.PlanFile, "Plan", &r.Plan},
	} {
		data, err := record.ReadRegular(filepath.Join(dir, f.name))
		if err == nil {
			err = compile.Validate(f.definition, data)
		}
		if err == nil {
			err = json.Unmarshal(data, f.into)
		}
		if err == nil {
			err = unsaid(data, f.into)
		}
		if err != nil {
			return r, &engine.Error{Op: "read run", Err: fmt.Errorf("%s: %w", filepath.Join(dir, f.name), err)}
		}
	}
	events, err := record.ReadRegular(filepath.Join(dir, record.EventsFile))
	if err != nil {
		return r, &engine.Error{Op: "read run", Err: err}
	}
	lines := bufio.NewScanner(bytes.NewReader(events))
	lines.Buffer(nil, len(events)+1)
	for lines.Scan() {
		var receipt bench.Receipt
		if err := json.Unmarshal(lines.Bytes(), &receipt); err != nil {
			return r, &engine.Error{Op: "read run", Err: fmt.Errorf("%s: %w", filepath.Join(dir, record.EventsFile), err)}
		}
		if receipt.Event == "step" {
			r.Steps[receipt.Step] = receipt
		}
	}
	return r, lines.Err()
}

// unsaid is an error where data lacks a field that it was decoded into all the same, as its zero value.
func unsaid(data []byte, decoded any) error {
	back, err := json.Marshal(decoded)
	if err != nil {
		return err
	}
	var said, have any
	if err := errors.Join(json.Unmarshal(data, &said), json.Unmarshal(back, &have)); err != nil {
		return err
	}
	var lacks []string
	canonical.EachDifference("", said, have, func(path, a, _ string) {
		if a == "absent" {
			lacks = append(lacks, path)
		}
	})
	if len(lacks) == 0 {
		return nil
	}
	return &engine.Error{Op: "find " + strings.Join(lacks, ", "), Err: fmt.Errorf("%w: it is not said", engine.ErrUnknown), Hint: "run it again with this program"}
}

// Compiler gives the digest of the plan that the engine compiles from a manifest for a reset.
type Compiler func(m bench.Manifest, reset string) (bench.SHA256, error)
