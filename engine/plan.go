package engine

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-multierror"

	"github.com/drumsbench/drumsbench/schemas"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// APIVersion of everything that the engine writes.
const APIVersion bench.APIVersion = schemas.APIVersion

// Plan is the frozen DAG of one arm-block. The data in it is all that decides
// what is run; functions are bound to it at execution. Its steps are in a
// topological order. It does not change after Build.
type Plan struct {
	bench.Plan
	nodes      []node
	dependants [][]int // steps that need the step, each once, ascending
	windows    []planWindow
	text       []byte
	digest     bench.SHA256
}

// planWindow is a measurement window of the plan.
type planWindow struct {
	name  string
	steps []int // ascending
}

// Digest is the SHA-256 of JSON.
func (p *Plan) Digest() bench.SHA256 { return p.digest }

// JSON is the canonical JSON (RFC 8785) of the plan's data.
func (p *Plan) JSON() []byte { return slices.Clone(p.text) }

// FormatDuration writes d as the schema's #Duration wants it: one number and one unit.
func FormatDuration(d time.Duration) bench.Duration {
	for _, u := range []struct {
		unit time.Duration
		name bench.Duration
	}{{time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}} {
		if d != 0 && d%u.unit == 0 {
			return bench.Duration(strconv.FormatInt(int64(d/u.unit), 10)) + u.name
		}
	}
	text := fmt.Sprintf("%d.%06d", d/time.Millisecond, d%time.Millisecond)
	return bench.Duration(strings.TrimRight(strings.TrimRight(text, "0"), ".") + "ms")
}

// link derives from the nodes what lookups need.
func (p *Plan) link() {
	p.dependants = make([][]int, len(p.nodes))
	index := map[string]int{}
	for i := range p.nodes {
		for _, from := range p.nodes[i].needs {
			p.dependants[from] = append(p.dependants[from], i)
		}
		name := p.Steps[i].Window
		if name == "" {
			continue
		}
		w, known := index[name]
		if !known {
			w = len(p.windows)
			index[name] = w
			p.windows = append(p.windows, planWindow{name: name})
		}
		p.nodes[i].window = w
		p.windows[w].steps = append(p.windows[w].steps, i)
	}
}

// check finds what wires of the right type can still get wrong.
func (p *Plan) check() error {
	var errs *multierror.Error
	if err := p.checkOrder(); err != nil {
		errs = multierror.Append(errs, err)
	}
	// Without an order the searches below would not mean anything.
	if errs == nil {
		errs = p.checkOwnership()
	}
	return errs.ErrorOrNil()
}

// checkOrder sorts the graph in which each window is one node (Kahn). What
// cannot be sorted waits for itself.
func (p *Plan) checkOrder() error {
	n := len(p.nodes)
	group := func(i int) int { // windows come after the steps
		if w := p.nodes[i].window; w >= 0 {
			return n + w
		}
		return i
	}
	pending := make([]int, n+len(p.windows))
	for i := range p.nodes {
		for _, from := range p.nodes[i].needs {
			if group(from) != group(i) {
				pending[group(i)]++
			}
		}
	}
	members := func(g int) []int {
		if g < n {
			return []int{g}
		}
		return p.windows[g-n].steps
	}
	var free []int
	for g := range pending {
		if pending[g] == 0 && (g >= n || group(g) == g) {
			free = append(free, g)
		}
	}
	for len(free) > 0 {
		g := free[len(free)-1]
		free = free[:len(free)-1]
		for _, i := range members(g) {
			for _, to := range p.dependants[i] {
				if h := group(to); h != g {
					if pending[h]--; pending[h] == 0 {
						free = append(free, h)
					}
				}
			}
		}
	}
	at := slices.IndexFunc(pending, func(n int) bool { return n > 0 })
	if at < 0 {
		return nil
	}
	// Walk back from one that is left to one that is left, until a group comes again.
	type hop struct{ group, from, to int }
	var path []hop
	for !slices.ContainsFunc(path, func(h hop) bool { return h.group == at }) {
		h := hop{group: at}
		for _, i := range members(at) {
			for _, from := range p.nodes[i].needs {
				if g := group(from); g != at && pending[g] > 0 {
					h.from, h.to = from, i
				}
			}
		}
		path = append(path, h)
		at = group(h.from)
	}
	path = path[slices.IndexFunc(path, func(h hop) bool { return h.group == at }):]
	var text []string
	for _, h := range path {
		line := fmt.Sprintf("%s needs %s", p.Steps[h.to].Id, p.Steps[h.from].Id)
		if h.group >= n {
			line = fmt.Sprintf("window %s waits: %s", p.windows[h.group-n].name, line)
		}
		text = append(text, line)
	}
	return fmt.Errorf("cycle: %s", strings.Join(text, "; "))
}

// access is one step's taking of a value.
type access struct {
	step int
	part part
	mode string
	typ  string
}

// checkOwnership checks that nobody can have a value at the same time as, or
// after, somebody who has it alone.
func (p *Plan) checkOwnership() *multierror.Error {
	taken := map[int][]access{} // by giving step; ascending
	var owned []int
	for i := range p.nodes {
		for _, in := range p.nodes[i].inputs {
			if in.builder == nil {
				continue
			}
			if in.mode != ModeRead && !slices.ContainsFunc(taken[in.step], func(a access) bool { return a.mode != ModeRead }) {
				owned = append(owned, in.step)
			}
			taken[in.step] = append(taken[in.step], access{step: i, part: in.part, mode: in.mode, typ: typeName(in.typ)})
		}
	}
	var errs *multierror.Error
	s := newSearch(p)
	for _, giver := range owned {
		all := taken[giver]
		for _, which := range []part{partA, partB} {
			of := slices.DeleteFunc(slices.Clone(all), func(a access) bool { return !overlap(a.part, which) })
			errs = multierror.Append(errs, s.conflicts(giver, of)...)
			if len(of) == len(all) {
				break
			}
		}
	}
	return errs
}

// search answers which steps lie before or after one, looking no further than it must.
type search struct {
	plan  *Plan
	seen  []int // the number of the search that saw the step last
	count int
	todo  []int
}

func newSearch(p *Plan) *search { return &search{plan: p, seen: make([]int, len(p.nodes))} }

// from marks what is reached from a step along next, as long as within holds.
func (s *search) from(step int, next func(int) []int, within func(int) bool) {
	s.count++
	s.todo = append(s.todo[:0], step)
	for len(s.todo) > 0 {
		i := s.todo[len(s.todo)-1]
		s.todo = s.todo[:len(s.todo)-1]
		for _, j := range next(i) {
			if s.seen[j] != s.count && within(j) {
				s.seen[j] = s.count
				s.todo = append(s.todo, j)
			}
		}
	}
}

// before marks the ancestors of step that are not before low in the plan.
func (s *search) before(step, low int) {
	s.from(step, func(i int) []int { return s.plan.nodes[i].needs }, func(j int) bool { return j >= low })
}

// after marks the descendants of step that are not behind high in the plan.
func (s *search) after(step, high int) {
	s.from(step, func(i int) []int { return s.plan.dependants[i] }, func(j int) bool { return j <= high })
}

func (s *search) found(step int) bool { return s.seen[step] == s.count }

// conflicts of the steps that take one value. Paths are transitive, so it is
// enough to look from one owner to the next and at the readers between them.
func (s *search) conflicts(giver int, all []access) (errs []error) {
	id := func(i int) string { return s.plan.Steps[i].Id }
	fail := func(a access, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s of %s: %s", a.typ, id(giver), fmt.Sprintf(format, args...)))
	}
	verb := map[string]string{ModeRead: "reads", ModeUse: "uses", ModeMove: "moves"}
	unordered := func(a, b access) {
		if b.mode == ModeMove {
			fail(b, "step %s %s it and is not ordered before step %s, which moves it", id(a.step), verb[a.mode], id(b.step))
			return
		}
		fail(b, "steps %s (%s it) and %s (%s it) are not ordered", id(a.step), verb[a.mode], id(b.step), verb[b.mode])
	}
	for len(all) > 0 {
		// all[0] is the last owner, or a reader if there was none yet; then readers; then the next owner.
		end := 1 + slices.IndexFunc(all[1:], func(a access) bool { return a.mode != ModeRead })
		owner := all[0].mode != ModeRead
		group := all
		if end > 0 {
			group = all[:end]
		}
		if owner && len(group) > 1 {
			s.after(group[0].step, group[len(group)-1].step)
			for _, reader := range group[1:] {
				switch {
				case group[0].mode == ModeMove:
					unordered(reader, group[0])
				case !s.found(reader.step):
					unordered(group[0], reader)
				}
			}
		}
		if end == 0 {
			break
		}
		next := all[end]
		switch {
		case group[0].mode == ModeMove && next.mode == ModeMove:
			fail(next, "moved twice, by steps %s and %s", id(group[0].step), id(next.step))
		case group[0].mode == ModeMove:
			unordered(next, group[0])
		default:
			s.before(next.step, group[0].step)
			for _, a := range group {
				if !s.found(a.step) {
					unordered(a, next)
				}
			}
		}
		all = all[end:]
	}
	return errs
}
