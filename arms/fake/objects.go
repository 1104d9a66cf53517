package fake

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
)

// objects are what a slot's processes hold of the kernel: each slot's own, but for /dev/null.
func (t *tenancy) objects(w *world) (list []engine.Object) {
	add := func(kind engine.ObjectKind, id string, pid int64) {
		list = append(list, engine.Object{Kind: kind, ID: id, Holder: fmt.Sprintf("pid %d", pid)})
	}
	for _, p := range w.Processes {
		add(engine.ObjectProcess, fmt.Sprintf("%d.%d", t.nth, p.Pid), p.Pid)
		add(engine.ObjectDevice, "/dev/null", p.Pid)
	}
	for _, kind := range []string{"pid", "mnt", "net", "ipc", "uts"} {
		add(engine.ObjectNamespace, fmt.Sprintf("%s:[%d]", kind, t.nth), 1)
	}
	add(engine.ObjectSocket, fmt.Sprintf("socket:[%d]", t.nth), 1)
	for _, l := range w.Locks {
		add(engine.ObjectLock, fmt.Sprintf("%d %s", t.nth, engine.LockSubject(l)), l.Pid)
	}
	if t.fault("pipe-shared") {
		add(engine.ObjectPipe, "pipe:[1]", 1)
	}
	if t.fault("device-shared") {
		add(engine.ObjectDevice, "/dev/urandom", 1)
	}
	return list
}

// canary does what cmd/canary does, in one channel: hold, seek, clean and leave.
func (p *program) canary(args []string) (int, error) {
	if len(args) < 2 {
		return p.wrong(2, "canary: PATH VERB TOKENS"), nil
	}
	t := p.server.tenancy
	tokens := map[string]bool{}
	for _, a := range args[2:] {
		token, _, _ := strings.Cut(a, ":")
		tokens[token] = true
	}
	// each calls do with the canaries that the slot sees, under the locks that they need.
	each := func(do func(held map[string]bool)) {
		p.server.with(func(*world) {
			if t.held == nil {
				t.held = map[string]bool{}
			}
			do(t.held)
		})
		if t.fault("canary-shared") {
			t.arm.mu.Lock()
			defer t.arm.mu.Unlock()
			if t.arm.held == nil {
				t.arm.held = map[string]bool{}
			}
			do(t.arm.held)
		}
	}
	letGo := func(held map[string]bool) {
		maps.DeleteFunc(held, func(token string, _ bool) bool { return tokens[token] })
	}
	switch args[1] {
	case "hold":
		each(func(held map[string]bool) { maps.Copy(held, tokens) })
		return 0, p.wait(1 << 62)
	case "clean":
		each(letGo)
	case "seek":
		seen := map[string]bool{}
		each(func(held map[string]bool) {
			for token := range held {
				if tokens[token] {
					seen[token] = true
				}
			}
		})
		for _, token := range slices.Sorted(maps.Keys(seen)) {
			p.out = append(p.out, "file "+token+"\n"...)
		}
	case "leave":
		p.server.with(func(w *world) { delete(w.files, args[0]) })
	default:
		return p.wrong(2, "canary: no such verb"), nil
	}
	return 0, nil
}
