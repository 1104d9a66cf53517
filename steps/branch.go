package steps

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/pathtext"
	"github.com/drumsbench/drumsbench/schemas/bench"
	"github.com/drumsbench/drumsbench/steps/gate"
)

// Facts of the steps of branching tasks.
const (
	// FactWitness is the digest of what the witness commands printed.
	FactWitness = "witness.sha256"
	// FactShared is a list of bench texts: what slots share, one line an object.
	FactShared = "shared"
)

// Parts of a slot's identity, and what siblings have in common by their nature.
const (
	PartHostname  = "hostname"
	PartMachineID = "machine-id"
	PartCanary    = "canary"
	// PartDraw is a number that the guest server drew when it was asked to.
	PartDraw = "server-draw"
	// ResidueToken is the live state by which a restore shows that memory came back.
	ResidueToken = "live-token"
	ResidueBoot  = "boot-id"
	// ResidueLayout is where the first process has its stack and the kernel's page.
	ResidueLayout = "address-layout"
	// PartClock names how far a slot's clock is from the host's, in findings and facts.
	PartClock = "clock"
)

const (
	hostnameFile  = "/proc/sys/kernel/hostname"
	machineIDFile = "/etc/machine-id"
	bootIDFile    = "/proc/sys/kernel/random/boot_id"
	layoutFile    = "/proc/1/maps"
	// smallFile bounds what is read of those.
	smallFile    = 64 << 10
	drawTimeout  = 5 * time.Second
	deadlineHash = 3 * time.Minute // every file of a checkpoint is read
)

// newIdentity gives a slot a host name and, where its image has one, a machine id of its own. Each is read back.
func newIdentity(ctx context.Context, slot engine.Slot, c *guest.Client) error {
	var r [16]byte
	if _, err := rand.Read(r[:]); err != nil {
		return err
	}
	host := fmt.Sprintf("%s-%s", slot.Name(), hex.EncodeToString(r[:4]))
	var err error
	if r, ok := slot.(engine.Renamer); ok {
		err = r.SetHostname(ctx, host)
	} else {
		err = c.WriteFile(ctx, hostnameFile, []byte(host+"\n"), 0o644)
	}
	if err != nil {
		return &engine.Error{Op: "set host name", Err: err}
	}
	probe, err := c.Probe(ctx)
	if err == nil && probe.Hostname != host {
		err = fmt.Errorf("it is %q, %q was written", probe.Hostname, host)
	}
	if err != nil {
		return &engine.Error{Op: "read back host name", Err: err}
	}
	if _, err := c.ReadFile(ctx, machineIDFile, smallFile); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return &engine.Error{Op: "read machine id", Err: err}
	}
	r[6], r[8] = r[6]&0x0f|0x40, r[8]&0x3f|0x80 // machine-id(5): a version 4 UUID without hyphens
	if err := c.WriteFile(ctx, machineIDFile, []byte(hex.EncodeToString(r[:])+"\n"), 0o444); err != nil {
		return &engine.Error{Op: "set machine id", Err: err}
	}
	return nil
}

// Identify reads what makes a slot one of its own.
func Identify(b *engine.Builder, at At, slot engine.Promise[engine.Slot], planted engine.Promise[engine.Canary], p bench.IdentifyParams, after ...engine.Input) engine.Promise[engine.Identity] {
	in := append([]engine.Input{engine.Use(slot), engine.Read(planted)}, after...)
	limit := deadlineGate + drawTimeout + guest.CheckTime
	if h := p.Hygiene; h != nil {
		for _, o := range h.Own {
			limit += duration(string(o.Read.Timeout)) + slack
		}
		for _, o := range h.Residuals {
			limit += duration(string(o.Read.Timeout)) + slack
		}
	}
	return engine.Add[engine.Identity](b, at.spec(KindIdentify, p, limit), in...)
}

var bindIdentify = engine.Bind(KindIdentify, func(ctx context.Context, x *engine.Exec, p bench.IdentifyParams) (engine.Identity, error) {
	slot := engine.In[engine.Slot](x, 0)
	c := dial(slot, p.Port)
	asked := time.Now()
	probe, perr := c.Probe(ctx)
	answered := time.Now()
	file := func(path string) engine.Reading[string] {
		data, err := c.ReadFile(ctx, path, smallFile)
		if errors.Is(err, fs.ErrNotExist) {
			return engine.Known("", path+": there is none", engine.ViewGuest)
		}
		return told(strings.TrimSpace(string(data)), err, path)
	}
	id := engine.Identity{Slot: x.Step().Id, Parts: map[string]engine.Reading[string]{
		PartHostname:  told(probe.Hostname, perr, "guest server /probe"),
		PartMachineID: file(machineIDFile),
		PartCanary:    engine.Known(string(canonical.Sum([]byte(engine.In[engine.Canary](x, 1)))), "what was planted", engine.ViewGuest),
		PartDraw:      draw(ctx, c),
	}, Residue: map[string]engine.Reading[string]{
		ResidueToken: told(probe.Live.Token, perr, "guest server /probe"),
		ResidueBoot:  file(bootIDFile),
	}, Clock: engine.Unknown[time.Duration](fmt.Sprint(perr), engine.ViewGuest)}
	if perr == nil {
		id.Clock = clockOffset(probe.Clock, asked, answered)
	}
	text, err := c.ReadFile(ctx, layoutFile, smallFile)
	id.Residue[ResidueLayout] = told(layout(string(text)), err, layoutFile)
	if h := p.Hygiene; h != nil {
		for _, o := range h.Own {
			id.Parts[string(o.Name)] = printed(ctx, c, o.Read)
		}
		for _, o := range h.Residuals {
			id.Residue[string(o.Name)] = printed(ctx, c, o.Read)
		}
	}
	id.Slot, _, _ = strings.Cut(id.Slot, "/")
	if branch := x.Step().Branch; branch != "" {
		id.Slot = string(branch)
	}
	for _, all := range []map[string]engine.Reading[string]{id.Parts, id.Residue} {
		for name, r := range all {
			if v, known := r.Get(); known && v != "" && name != PartHostname {
				r = engine.Known(string(canonical.Sum([]byte(v))), r.Source()+", sha256", r.View())
			}
			x.Fact(r.Fact("identity." + name))
		}
	}
	return id, nil
})

// clockOffset is how far a guest's clock is from the host's at least: it was read at some moment of the exchange.
func clockOffset(clock bench.Int64, asked, answered time.Time) engine.Reading[time.Duration] {
	ns, err := strconv.ParseInt(string(clock), 10, 64)
	if err != nil {
		return engine.Unknown[time.Duration]("the guest's clock: "+err.Error(), engine.ViewGuest)
	}
	var off time.Duration
	switch at := time.Unix(0, ns); {
	case at.Before(asked.Round(0)):
		off = at.Sub(asked.Round(0))
	case at.After(answered.Round(0)):
		off = at.Sub(answered.Round(0))
	}
	return engine.Known(off, "guest server /probe, between two readings of the host's clock", engine.ViewGuest)
}

// layout is what of a process's memory map was drawn at random when it started and stays: the upper end of its stack
// and the page of the kernel's (proc_pid_maps(5)).
func layout(maps string) string {
	var out []string
	for line := range strings.Lines(maps) {
		f := strings.Fields(line)
		if len(f) == 6 && (f[5] == "[stack]" || f[5] == "[vdso]") {
			_, end, _ := strings.Cut(f[0], "-")
			out = append(out, f[5]+" "+end)
		}
	}
	return strings.Join(out, ", ")
}

// printed is what a command printed, which must end with the exit status that it names. What a program of the guest
// keeps to itself stays out of the record: only its digest is a fact.
func printed(ctx context.Context, c *guest.Client, cmd bench.Command) engine.Reading[string] {
	r, err := c.Execute(ctx, cmd.Exec, duration(string(cmd.Timeout)))
	switch {
	case err != nil:
	case r.TimedOut:
		err = fmt.Errorf("%s did not end in %s", words(cmd.Exec), cmd.Timeout)
	case r.Signalled || int64(r.Exit) != cmd.Exit:
		err = fmt.Errorf("%s exited with %d, not %d: %s", words(cmd.Exec), r.Exit, cmd.Exit, tail(r.Stderr))
	case r.Truncated:
		err = fmt.Errorf("%s printed more than the guest server hands over", words(cmd.Exec))
	}
	return told(strings.TrimSpace(string(r.Stdout)), err, words(cmd.Exec))
}

// seedWord stands for a seed in the words of what makes a slot its own.
const seedWord = "{seed}"

// makeOwn has a slot's programs made its own, each with a seed that no other slot has.
func makeOwn(ctx context.Context, x *engine.Exec, c *guest.Client, list []bench.Own) error {
	for _, o := range list {
		var r [16]byte
		if _, err := rand.Read(r[:]); err != nil {
			return err
		}
		seed := hex.EncodeToString(r[:])
		cmd := o.Reseed
		cmd.Exec = slices.Clone(cmd.Exec)
		for i, word := range cmd.Exec {
			cmd.Exec[i] = strings.ReplaceAll(word, seedWord, seed)
		}
		if err := command(ctx, x, c, "reseed "+string(o.Name), cmd); err != nil {
			return err
		}
		x.Fact(bench.Fact{Name: "reseed." + string(o.Name), Known: true, Value: seed, Source: "engine"})
	}
	return nil
}

// told is a reading of what the guest said, or of the error in its place.
func told(v string, err error, source string) engine.Reading[string] {
	switch {
	case err != nil:
		return engine.Unknown[string](err.Error(), engine.ViewGuest)
	case v == "":
		return engine.Unknown[string](source+" is empty", engine.ViewGuest)
	}
	return engine.Known(v, source, engine.ViewGuest)
}

// draw has the guest server draw a number: the folder that it makes for a checker's copy has a random name, which
// the copy's path tells. A server whose randomness came back with the checkpoint would draw what its siblings draw.
func draw(ctx context.Context, c *guest.Client) engine.Reading[string] {
	const source = "name of a folder that the guest server made"
	r, err := c.Check(ctx, guest.Check{Exec: []string{"echo", guest.ProgramPlace}, Name: "draw", Program: []byte("draw\n"), Timeout: drawTimeout})
	path := strings.TrimSpace(string(r.Stdout))
	switch {
	case err != nil:
	case r.Resolved == "":
		err = errors.New("the guest has no program echo")
	case r.TimedOut || r.Signalled || r.Exit != 0 || !strings.HasSuffix(path, "/draw"):
		err = fmt.Errorf("echo exited with %d and printed %q", r.Exit, path)
	}
	return told(filepath.Base(filepath.Dir(path)), err, source)
}

// TakeWitness has the witness commands print the task's state. Each must end with the exit status that it names.
func TakeWitness(b *engine.Builder, at At, slot engine.Promise[engine.Slot], p bench.WitnessParams, after ...engine.Input) engine.Promise[engine.Witness] {
	limit := slack
	for _, c := range p.Commands {
		limit += duration(string(c.Timeout)) + slack
	}
	return engine.Add[engine.Witness](b, at.spec(KindWitness, p, limit), append([]engine.Input{engine.Use(slot)}, after...)...)
}

var bindWitness = engine.Bind(KindWitness, func(ctx context.Context, x *engine.Exec, p bench.WitnessParams) (engine.Witness, error) {
	c := dial(engine.In[engine.Slot](x, 0), p.Port)
	w := engine.Witness{}
	for i, cmd := range p.Commands {
		name := fmt.Sprintf("witness %d", i)
		r, err := runCommand(ctx, x, c, name, cmd)
		if err != nil {
			return nil, err
		}
		if r.Truncated {
			return nil, &engine.Error{Op: name, Err: fmt.Errorf("%w: it printed more than the guest server hands over", engine.ErrUnknown), Hint: "print a digest of it"}
		}
		w = append(w, string(r.Stdout))
	}
	digest, err := canonical.Digest(w)
	if err != nil {
		return nil, err
	}
	x.Fact(bench.Fact{Name: FactWitness, Known: true, Value: string(digest), Source: "witness commands", View: engine.ViewGuest})
	return w, nil
})

// Audit lists what slots that run at the same time share of the host's kernel. It judges nothing: GateAudit does.
func Audit(b *engine.Builder, at At, slots []engine.Promise[engine.Slot], after ...engine.Input) engine.Promise[engine.Audited] {
	var in []engine.Input
	for _, s := range slots {
		in = append(in, engine.Read(s))
	}
	return engine.Add[engine.Audited](b, at.spec(KindAudit, bench.AuditParams{}, deadlineGate), append(in, after...)...)
}

var bindAudit = engine.Bind(KindAudit, func(ctx context.Context, x *engine.Exec, _ bench.AuditParams) (engine.Audited, error) {
	var names []string
	var held [][]engine.Object
	var unknown engine.Judgement
	count := 0
	for i := range x.Inputs() {
		slot := engine.In[engine.Slot](x, i)
		r := slot.Observe(ctx, engine.AspectObjects).Objects
		list, known := r.Get()
		switch {
		case !known:
			unknown.Add(engine.VerdictUnknown, slot.Name(), "what it holds could not be observed").Have = r.Reason()
		case !slices.ContainsFunc(list, func(o engine.Object) bool { return o.Kind == engine.ObjectProcess }):
			unknown.Add(engine.VerdictUnknown, slot.Name(), "holds no process: nothing was looked at")
		}
		names, held, count = append(names, slot.Name()), append(held, list), count+len(list)
	}
	if len(unknown.Findings) > 0 {
		x.Judge(unknown)
		return nil, nil
	}
	shared := sharing(names, held)
	lines := []string{}
	for _, s := range shared {
		lines = append(lines, fmt.Sprintf("%s %s: %s", s.Kind, s.ID, strings.Join(s.Slots, ", ")))
	}
	x.Fact(bench.Fact{Name: "objects", Known: true, Value: fmt.Sprint(count), Source: "processes and descriptors of each slot", View: engine.ViewHost})
	fact(x, FactShared, lines, "processes and descriptors of each slot")
	data, err := json.MarshalIndent(shared, "", "  ")
	if err != nil {
		return nil, err
	}
	return shared, x.Evidence("shared.json", append(data, '\n'))
})

// sharing are the objects that more than one slot holds, sorted by kind and ID.
func sharing(names []string, held [][]engine.Object) engine.Audited {
	type key struct {
		kind engine.ObjectKind
		id   string
	}
	of := map[key]*engine.Shared{}
	for i, list := range held {
		for _, o := range list {
			k := key{o.Kind, o.ID}
			s := of[k]
			if s == nil {
				s = &engine.Shared{Kind: o.Kind, ID: o.ID}
				of[k] = s
			}
			if !slices.Contains(s.Slots, names[i]) { // the first holder of each slot stands for it
				s.Slots, s.Holders = append(s.Slots, names[i]), append(s.Holders, names[i]+" "+o.Holder)
			}
		}
	}
	out := engine.Audited{}
	for _, s := range of {
		if len(s.Slots) > 1 {
			out = append(out, *s)
		}
	}
	slices.SortFunc(out, func(a, b engine.Shared) int {
		return strings.Compare(string(a.Kind)+" "+a.ID, string(b.Kind)+" "+b.ID)
	})
	return out
}

// GateAudit judges what siblings share by what two cold slots share.
func GateAudit(b *engine.Builder, at At, siblings, cold engine.Promise[engine.Audited]) engine.Promise[engine.Judged] {
	return addGate(b, at, bench.GateParams{Gate: gate.Audit}, engine.Read(siblings), engine.Read(cold))
}

// GateCarried judges that a branch has what the prefix left.
func GateCarried(b *engine.Builder, at At, before, trunk, branch engine.Promise[engine.Witness]) engine.Promise[engine.Judged] {
	return addGate(b, at, bench.GateParams{Gate: gate.Carried}, engine.Read(before), engine.Read(trunk), engine.Read(branch))
}

// GateHygiene judges that slots have nothing of their identity in common; pair are two cold slots, the control.
func GateHygiene(b *engine.Builder, at At, pair [2]engine.Promise[engine.Identity], slots []engine.Promise[engine.Identity], h *bench.Hygiene) engine.Promise[engine.Judged] {
	in := []engine.Input{engine.Read(pair[0]), engine.Read(pair[1])}
	for _, s := range slots {
		in = append(in, engine.Read(s))
	}
	return addGate(b, at, bench.GateParams{Gate: gate.Hygiene, Hygiene: h}, in...)
}

// GateDiverged judges that branches came to different states; after are their witnesses, in their order.
func GateDiverged(b *engine.Builder, at At, branches []bench.Branch, trunk engine.Promise[engine.Witness], after []engine.Promise[engine.Witness]) engine.Promise[engine.Judged] {
	in := []engine.Input{engine.Read(trunk)}
	for _, w := range after {
		in = append(in, engine.Read(w))
	}
	return addGate(b, at, bench.GateParams{Gate: gate.Diverged, Branches: branches}, in...)
}

// GateParent judges that a checkpoint is as it was sealed, every file read again.
func GateParent(b *engine.Builder, at At, cp engine.Promise[engine.Checkpoint], after ...engine.Input) engine.Promise[engine.Judged] {
	s := at.spec(KindGate, bench.GateParams{Gate: gate.Parent}, deadlineHash)
	s.Optional = true
	return engine.Add[engine.Judged](b, s, append([]engine.Input{engine.Read(cp)}, after...)...)
}

// inputs are all inputs of a step from the first on.
func inputs[T any](x *engine.Exec, first int) (list []T) {
	for i := first; i < x.Inputs(); i++ {
		list = append(list, engine.In[T](x, i))
	}
	return list
}

// digests of a checkpoint's sealed files as they are now; what is not there is left out.
func digests(ctx context.Context, cp engine.Checkpoint) engine.Reading[map[string]bench.SHA256] {
	have := map[string]bench.SHA256{}
	for _, f := range cp.Handle.Files {
		if err := ctx.Err(); err != nil {
			return engine.Unknown[map[string]bench.SHA256](err.Error(), engine.ViewHost)
		}
		path, err := pathtext.Unquote(f.Path)
		if err != nil {
			return engine.Unknown[map[string]bench.SHA256](err.Error(), engine.ViewHost)
		}
		sum, err := digestOf(filepath.Join(cp.Dir, path))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return engine.Unknown[map[string]bench.SHA256](err.Error(), engine.ViewHost)
		default:
			have[f.Path] = sum
		}
	}
	return engine.Known(have, "files of the checkpoint", engine.ViewHost)
}

func digestOf(path string) (bench.SHA256, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return bench.SHA256(hex.EncodeToString(h.Sum(nil))), nil
}
