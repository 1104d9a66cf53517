package compile

import (
	"fmt"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// identityParts are what every slot has: the parts of an identity, and what stays as it was in the checkpoint.
var identityParts = map[bench.Name]bool{"hostname": true, "machine-id": true, "canary": true, "server-draw": true, "clock": true,
	"live-token": true, "boot-id": true, "address-layout": true}

// hygiene checks what siblings are compared by:
//
//	names             each once, and none of those that every slot has
//	experiment.pool   none: its slots are not made ready at one moment
func (r *rules) hygiene(m bench.Manifest) {
	h := m.Hygiene
	if h == nil {
		return
	}
	seen := map[bench.Name]bool{}
	name := func(path string, n bench.Name) {
		switch {
		case identityParts[n]:
			r.add(path+".name", fmt.Sprintf("every slot has a %q", n), "name it otherwise")
		case seen[n]:
			r.add(path+".name", fmt.Sprintf("%q stands there twice", n), "")
		}
		seen[n] = true
	}
	for i, o := range h.Own {
		path := fmt.Sprintf("hygiene.own[%d]", i)
		name(path, o.Name)
		r.duration(path+".reseed.timeout", o.Reseed.Timeout)
		r.duration(path+".read.timeout", o.Read.Timeout)
	}
	for i, o := range h.Residuals {
		path := fmt.Sprintf("hygiene.residuals[%d]", i)
		name(path, o.Name)
		r.duration(path+".read.timeout", o.Read.Timeout)
	}
	if m.Experiment.Pool > 0 {
		r.add("hygiene", "compares slots of one moment, and a pool makes them ready at any", "leave experiment.pool out")
	}
}
