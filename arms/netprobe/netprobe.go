// Package netprobe finds the layer in which a network namespace is lost. It
// exists because a restore whose return code is 0 has brought back slots without
// an address, and the kernel, CRIU and the container runtime could each be the
// reason: each layer is tried alone, with a process that does nothing, and what
// its namespace holds is read on both sides.
//
// Always holds: preserved is said only where the state was read before and after
// and is the same, never because a tool returned 0; what could not be tried is
// unknown; everything that outlives a call is in the ledger before it is made,
// every process is born in the run's ownership cgroup, and a probe takes away
// what it made, however it ended.
package netprobe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/hostfacts"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Layers, in the order in which they are tried: each removes one possible reason.
const (
	Kernel = "kernel"
	CRIU   = "criu"
	OCI    = "oci"

	// The two lines of the last one.
	ociOwn    = "oci-own"
	ociHolder = "oci-holder"
)

// Names of the layers that can be asked for.
var Names = []string{Kernel, CRIU, OCI}

// Outcomes.
const (
	Preserved bench.Preservation = "preserved"
	Lost      bench.Preservation = "lost"
	Unknown   bench.Preservation = "unknown"
)

// Where a namespace was lost.
const (
	atStart   = "start"
	atDump    = "dump"
	atRestore = "restore"
)

const (
	// layerTime bounds one layer.
	layerTime = time.Minute
	// undoTime bounds what is done after it.
	undoTime = 20 * time.Second
)

// Options of a probe.
type Options struct {
	// Layers to try; none is all.
	Layers []string
	// Runc is the path of a runc; empty is the one that the oci arm uses.
	Runc string

	// stage is called with a namespace's path where a test plants a fault.
	stage func(layer, stage, path string) error
}

// Stages at which a test may plant a fault.
const (
	stageReady  = "ready"  // the namespace is there and marked
	stageDumped = "dumped" // only a holder's namespace is still there
)

// Probe tries the layers and says what each kept. A layer that could not be
// tried is unknown in the result; an error is one of the probe itself: its
// context ended, or something that it made could not be taken away.
func Probe(ctx context.Context, ws *engine.Workspace, o Options) (bench.NetworkProbe, error) {
	const op = "probe network"
	result := bench.NetworkProbe{ApiVersion: engine.APIVersion, Facts: kernelFacts(), Layers: []bench.NetworkLayer{}}
	for _, name := range o.Layers {
		if !slices.Contains(Names, name) {
			return result, &engine.Error{Op: op, Err: fmt.Errorf("%w: there is no layer %q; there are %s", engine.ErrUsage, name, strings.Join(Names, ", "))}
		}
	}
	owner, err := cgroup.OpenOwner(ws)
	if err != nil {
		return result, err
	}
	p := &probe{ws: ws, owner: owner, options: o}
	result.Layers, err = p.layers(ctx, &result)
	if err == nil && ctx.Err() != nil {
		err = &engine.Error{Op: op, Err: context.Cause(ctx)}
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	if err := errors.Join(err, owner.Remove(undo)); err != nil {
		return result, err
	}
	result.Verdict = Verdict(result.Layers)
	return result, nil
}

// Verdict is the worst outcome of the layers that have to keep the namespace:
// lost, then unknown. Without such a layer it is unknown.
func Verdict(layers []bench.NetworkLayer) bench.Preservation {
	verdict, some := Preserved, false
	for _, l := range layers {
		switch {
		case !l.Required:
			continue
		case l.Outcome == Lost:
			return Lost
		case l.Outcome != Preserved:
			verdict = Unknown
		}
		some = true
	}
	if !some {
		return Unknown
	}
	return verdict
}

// kernelFacts are the host's that decide what a layer can do.
func kernelFacts() []bench.Fact {
	return slices.DeleteFunc(hostfacts.Read(), func(f bench.Fact) bool { return f.Name != "kernel-release" && f.Name != "machine" })
}

// probe is one run through the layers.
type probe struct {
	ws      *engine.Workspace
	owner   *cgroup.Owner
	options Options
}

func (p *probe) wants(name string) bool {
	return len(p.options.Layers) == 0 || slices.Contains(p.options.Layers, name)
}

func (p *probe) at(layer, stage, path string) error {
	if p.options.stage == nil {
		return nil
	}
	return p.options.stage(layer, stage, path)
}

// layers tries what was asked for. The error is one of taking away.
func (p *probe) layers(ctx context.Context, result *bench.NetworkProbe) (layers []bench.NetworkLayer, err error) {
	layers = []bench.NetworkLayer{}
	try := func(l bench.NetworkLayer, f func(ctx context.Context, l *bench.NetworkLayer) error, before ...error) {
		if err == nil && ctx.Err() == nil {
			err = p.try(ctx, &l, f, errors.Join(before...))
			layers = append(layers, l)
		}
	}
	if p.wants(Kernel) {
		try(bench.NetworkLayer{Layer: Kernel, Required: true, Text: "a fresh namespace answers criu's link request"}, p.kernel)
	}
	if !p.wants(CRIU) && !p.wants(OCI) {
		return layers, err
	}
	tool, terr := criu.Locate(ctx, p.ws.State)
	if terr == nil {
		result.Facts = append(result.Facts, tool.Facts()...)
	} else {
		result.Facts = append(result.Facts, engine.Unknown[string](terr.Error(), engine.ViewHost).Fact("criu.version"))
	}
	if p.wants(CRIU) {
		try(bench.NetworkLayer{Layer: CRIU, Required: true, Text: "a process in a namespace of its own, dumped and restored by criu alone"},
			func(ctx context.Context, l *bench.NetworkLayer) error { return p.criu(ctx, l, tool) }, terr)
	}
	if p.wants(OCI) {
		runc, facts, rerr := findRunc(ctx, p.ws.State, p.options.Runc)
		result.Facts = append(result.Facts, facts...)
		try(bench.NetworkLayer{Layer: ociOwn, Text: "a container with a namespace of its own, checkpointed and restored by runc"},
			func(ctx context.Context, l *bench.NetworkLayer) error { return p.container(ctx, l, runc, tool, false) }, rerr, terr)
		try(bench.NetworkLayer{Layer: ociHolder, Required: true, Text: "the same container in the namespace of a holder process"},
			func(ctx context.Context, l *bench.NetworkLayer) error { return p.container(ctx, l, runc, tool, true) }, rerr, terr)
	}
	return layers, err
}

// try runs one layer. Its failure makes the layer unknown; the error is one of
// taking away what it made.
func (p *probe) try(ctx context.Context, l *bench.NetworkLayer, f func(context.Context, *bench.NetworkLayer) error, before error) error {
	l.Outcome, l.Dumped, l.Missing, l.Extra = Unknown, []bench.NetworkPart{}, []string{}, []string{}
	begin := time.Now()
	err := before
	if err == nil {
		limited, cancel := context.WithTimeoutCause(ctx, layerTime, engine.ErrDeadline)
		err = f(limited, l)
		cancel()
	}
	l.Nanoseconds = bench.Int64(strconv.FormatInt(time.Since(begin).Nanoseconds(), 10))
	if err != nil {
		failure := engine.Failure(err)
		l.Outcome, l.LostAt = Unknown, ""
		l.Reason, l.Hint, l.Log = failure.Text, failure.Hint, failure.Log
	}
	var undone *undoError
	if errors.As(err, &undone) {
		return undone
	}
	return nil
}

// undoError is about something that could not be taken away.
type undoError struct{ err error }

func (e *undoError) Error() string { return e.err.Error() }
func (e *undoError) Unwrap() error { return e.err }

// undo takes a layer's things away, with a time of its own, and adds what went wrong.
func undo(ctx context.Context, err *error, take func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	if uerr := take(ctx); uerr != nil {
		*err = errors.Join(*err, &undoError{uerr})
	}
}

// keepLog keeps a tool's log as evidence and names it in the error: the folder that it lies in goes.
func (p *probe) keepLog(path string, err error) error {
	text, rerr := os.ReadFile(path)
	if rerr != nil || err == nil {
		return err
	}
	ev, perr := p.ws.Evidence.Put("netprobe.log", text)
	if perr != nil {
		return errors.Join(err, perr)
	}
	return &engine.Error{Op: "probe network", Err: err, Log: p.ws.Evidence.Path(ev)}
}
