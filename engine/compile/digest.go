package compile

import (
	"encoding/json"
	"fmt"
	"sync"

	"cuelang.org/go/cue"

	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Effective returns m with every optional struct that has a default filled in:
// without a policy the oracle acts, without a state policy nothing is excluded,
// without a checkpoint policy the schema's own defaults hold. Idempotent.
func Effective(m bench.Manifest) (bench.Manifest, error) {
	if m.Policy == nil {
		m.Policy = &bench.Policy{Oracle: &bench.OraclePolicy{}}
	}
	if m.State == nil {
		m.State = &bench.State{}
	}
	if m.State.Exclude == nil {
		m.State = &bench.State{Exclude: []bench.GuestPath{}}
	}
	if m.Checkpoint == nil {
		policy, err := defaultCheckpointPolicy()
		if err != nil {
			return m, err
		}
		m.Checkpoint = &policy
	}
	return m, nil
}

// defaultCheckpointPolicy comes from the schema, so that no default is written twice.
var defaultCheckpointPolicy = sync.OnceValues(func() (policy bench.CheckpointPolicy, err error) {
	_, schema, err := newSchema()
	if err != nil {
		return policy, err
	}
	data, err := schema.LookupPath(cue.MakePath(cue.Def("CheckpointPolicy"))).MarshalJSON()
	if err != nil {
		return policy, fmt.Errorf("read default of #CheckpointPolicy: %w", err)
	}
	return policy, json.Unmarshal(data, &policy)
})

// Workload is the digest of everything that decides the work and nothing that
// decides how it is measured: image, guest, task, policy, checker, resources,
// network, readiness, canary, state and checkpoint policy. Not in it: the
// manifest's name and schema version, the arms and their settings, the experiment, and what a person has to look at
// (the plan has it). Two runs whose
// workload digests differ did not do the same work.
func Workload(m bench.Manifest) (bench.SHA256, error) {
	m, err := Effective(m)
	if err != nil {
		return "", err
	}
	return canonical.Digest(struct {
		Image      bench.Image             `json:"image"`
		Network    string                  `json:"network"`
		Guest      bench.Guest             `json:"guest"`
		Resources  bench.Resources         `json:"resources"`
		Task       bench.Task              `json:"task"`
		Policy     *bench.Policy           `json:"policy"`
		Checker    bench.Checker           `json:"checker"`
		Canary     bench.Canary            `json:"canary"`
		State      *bench.State            `json:"state"`
		Readiness  bench.Readiness         `json:"readiness"`
		Checkpoint *bench.CheckpointPolicy `json:"checkpoint"`
		Screen     *bench.ScreenPolicy     `json:"screen,omitempty"`
		Hygiene    *bench.Hygiene          `json:"hygiene,omitempty"`
	}{
		m.Image, m.Network, m.Guest, m.Resources, m.Task, m.Policy,
		m.Checker, m.Canary, m.State, m.Readiness, m.Checkpoint, m.Screen, m.Hygiene,
	})
}
