package fake

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/drumsbench/drumsbench/engine"
)

// scope says where a knob plants its fault when it names nothing itself.
type scope int

const (
	scopeRun      scope = iota // the image, the run: no slot
	scopeAny                   // every slot
	scopeCold                  // every provisioned slot
	scopeRestored              // every restored slot
)

// knobs are all faults; the package comment says what each does.
var knobs = map[string]scope{
	"mount-refused": scopeRun, "image-changed": scopeRun, "image-unreadable": scopeRun, "lacks-locks": scopeRun,
	"lacks-cleanup": scopeRun, "leaves-process": scopeRun, "host-changed": scopeRun, "host-busy": scopeRun,
	"unknown-survey": scopeRun, "unknown-cleanup": scopeRun,

	"provision-error": scopeCold, "provision-hang": scopeCold, "provision-dead": scopeCold,
	"dump-error": scopeCold, "dump-refused": scopeCold, "dump-hang": scopeCold, "dump-no-network": scopeCold,
	"dump-foreign": scopeCold, "checkpoint-damaged": scopeCold,

	"slow": scopeAny, "limits-ignored": scopeAny, "task-outside": scopeAny, "foreign-mount": scopeAny, "foreign-sys": scopeAny,
	"network-down": scopeAny, "outside-socket": scopeAny, "tool-config": scopeAny, "slow-start": scopeAny, "never-ready": scopeAny,
	"service-dead": scopeAny, "server-wrong-digest": scopeAny, "checker-missing": scopeAny, "checker-hang": scopeAny,
	"checker-signal": scopeAny, "checker-stub": scopeAny, "checker-exception": scopeAny, "checker-kills-server": scopeAny,
	"checker-other": scopeAny, "checker-swapped": scopeAny, "checker-swapped-unseen": scopeAny, "closure-unknown": scopeAny,
	"act-error": scopeAny, "no-picture": scopeAny, "other-system": scopeAny, "unknown-system": scopeAny, "act-kills-server": scopeAny, "canary-changed": scopeAny, "release-error": scopeAny,
	"limits-unknown": scopeAny, "unknown-mounts": scopeAny, "unknown-network": scopeAny, "unknown-locks": scopeAny,
	"unknown-processes": scopeAny, "unknown-enclosure": scopeAny, "unknown-state": scopeAny, "unknown-tool-config": scopeAny, "unknown-memory": scopeAny,

	"restore-error": scopeRestored, "restore-hang": scopeRestored, "restore-ignores-deadline": scopeRestored,
	"resume-error": scopeRestored, "lock-lost": scopeRestored, "lock-extra": scopeRestored, "process-lost": scopeRestored,
	"process-argv": scopeRestored, "state-dirty": scopeRestored, "token-lost": scopeRestored, "counter-stopped": scopeRestored,
	"canary-stale": scopeRestored, "memory-lost": scopeRestored, "checkpoint-written": scopeRestored,

	"hostname-stuck": scopeAny, "draw-repeats": scopeAny, "remember-ignored": scopeAny, "canary-shared": scopeAny,
	"pipe-shared": scopeAny, "device-shared": scopeAny, "unknown-objects": scopeAny,
}

// Knobs names all faults, sorted.
func Knobs() []string {
	names := make([]string, 0, len(knobs))
	for name := range knobs {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// planted is where one knob's fault is.
type planted struct {
	scope scope
	nth   int // 0 where every slot of the scope has it
}

// faults by knob.
type faults map[string][]planted

func parseFaults(list []string) (faults, error) {
	f := faults{}
	for _, word := range list {
		name, where, limited := strings.Cut(word, "@")
		s, ok := knobs[name]
		if !ok {
			return nil, usage("no fault named %q; there are: %s", name, strings.Join(Knobs(), ", "))
		}
		p := planted{scope: s}
		if limited {
			if s == scopeRun {
				return nil, usage("fault %q is of no slot and takes no @", name)
			}
			switch n, err := strconv.Atoi(where); {
			case where == "cold":
				p.scope = scopeCold
			case where == "restored":
				p.scope = scopeRestored
			case err == nil && n > 0:
				p.scope, p.nth = scopeAny, n
			default:
				return nil, usage("fault %q: after @ comes cold, restored or the number of a slot, counted from 1", word)
			}
			if s != scopeAny && p.scope != s && p.nth == 0 {
				return nil, usage("fault %q never happens: %s", word, scopeName(s))
			}
		}
		f[name] = append(f[name], p)
	}
	return f, nil
}

func usage(format string, args ...any) error {
	return &engine.Error{Op: "read the fake arm's settings", Err: fmt.Errorf("%w: "+format, append([]any{engine.ErrUsage}, args...)...),
		Hint: "the comment of package arms/fake says what each fault does"}
}

func scopeName(s scope) string {
	if s == scopeCold {
		return "it is one of provisioned slots"
	}
	return "it is one of restored slots"
}

// names in the manifest's form, sorted.
func (f faults) names() []string {
	out := []string{}
	for name, all := range f {
		for _, p := range all {
			switch s := knobs[name]; {
			case p.nth > 0:
				out = append(out, fmt.Sprintf("%s@%d", name, p.nth))
			case p.scope == s:
				out = append(out, name)
			case p.scope == scopeCold:
				out = append(out, name+"@cold")
			default:
				out = append(out, name+"@restored")
			}
		}
	}
	sort.Strings(out)
	return out
}

// run says whether a knob of the run is set.
func (f faults) run(name string) bool { return f.anywhere(name) }

// anywhere says whether a knob is set, wherever its fault is.
func (f faults) anywhere(name string) bool {
	if _, ok := knobs[name]; !ok {
		panic("no fault named " + name)
	}
	return len(f[name]) > 0
}

// slot says whether a knob is set for the nth slot of the arm.
func (f faults) slot(name string, restored bool, nth int) bool {
	return f.anywhere(name) && slices.ContainsFunc(f[name], func(p planted) bool {
		switch {
		case p.nth > 0:
			return p.nth == nth
		case p.scope == scopeCold:
			return !restored
		case p.scope == scopeRestored:
			return restored
		}
		return true
	})
}

// pause is a part of a verb that takes time under the knob "slow". It fails once ctx is done.
func (f faults) pause(ctx context.Context, slow bool) error {
	if !slow {
		return ctx.Err()
	}
	t := time.NewTimer(slowPart)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}
