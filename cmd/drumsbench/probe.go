//go:build linux && !elsewhere

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/drumsbench/drumsbench/arms/netprobe"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/terminal"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// probeCmd are the commands that find out in which layer something is lost.
type probeCmd struct {
	Network probeNetworkCmd `cmd:"" help:"Find the layer that loses a network namespace: kernel, criu or runc."`
}

type probeNetworkCmd struct {
	Layer []string `enum:"kernel,criu,oci" placeholder:"LAYER" help:"Try this layer only: kernel, criu or oci; may be repeated (default: all)."`
	Runc  string   `placeholder:"PATH" help:"The runc to try (default: the one that the oci arm uses)."`
}

// Help teaches the command.
func (probeNetworkCmd) Help() string {
	return `Tries, one layer after the other, whether a network namespace comes through a checkpoint and a restore,
with a process that does nothing, and says what was dumped, what came back and where it was lost. As
root; a few seconds. What it makes is in a ledger, as a run's is, and taken away again.

  kernel      a fresh namespace has to answer criu's link request
  criu        a process in a namespace of its own, dumped and restored by the private criu alone
  oci-own     a container with a namespace of its own, checkpointed and restored by runc; runc loses it
              by design, so it is shown for contrast and decides nothing
  oci-holder  the same container in the namespace of a holder process, as the oci arm runs it

Each namespace is marked with an address and a route: a lo that somebody brings up again afterwards is
not taken for one that was kept. docs/network.md says how to read the table.

Examples:

  drumsbench probe network
  drumsbench probe network --layer kernel --layer criu -o json

Exit codes: 0 every layer that has to keep the namespace kept it, 1 one lost it, 2 wrong usage, 3 one
could not be tried.`
}

// Run tries the layers.
func (c probeNetworkCmd) Run(ctx context.Context, g *globals) error {
	const op = "probe network"
	if os.Geteuid() != 0 {
		return &engine.Error{Op: op, Err: fmt.Errorf("%w: only root can try it", engine.ErrUnknown), Hint: "run this as root"}
	}
	result, err := ledgered(g, "probe-network", func(ws *engine.Workspace) (bench.NetworkProbe, bool, error) {
		r, err := netprobe.Probe(ctx, ws, netprobe.Options{Layers: c.Layer, Runc: c.Runc})
		// A log that the result names lies there.
		return r, err == nil && slices.ContainsFunc(r.Layers, func(l bench.NetworkLayer) bool { return l.Log != "" }), err
	})
	if err != nil {
		return err
	}
	if g.json() {
		err = printJSON(g.Stdout, result)
	} else {
		err = printText(g.Stdout, networkText(result))
	}
	if err != nil {
		return err
	}
	return exitCode(map[bench.Preservation]int{netprobe.Preserved: codeDone, netprobe.Lost: codeFailed, netprobe.Unknown: codeBlocked}[result.Verdict])
}

// ledgered runs something that owns things on the host in a run directory of its
// own, so that a sweep finds what a killed probe leaves. The directory goes when
// nothing is left and nothing in it was named: keep says that something was.
func ledgered[T any](g *globals, name string, f func(*engine.Workspace) (result T, keep bool, err error)) (result T, err error) {
	folder := filepath.Join(g.State, "runs", name+"-"+time.Now().UTC().Format("20060102T150405.000000"))
	dir, err := record.Create(folder)
	if err != nil {
		return result, err
	}
	keep := false
	err = func() error {
		ws, err := newWorkspace(g, dir)
		if err != nil {
			return err
		}
		result, keep, err = f(ws)
		release, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return errors.Join(err, ws.Release(release))
	}()
	owns := len(dir.Ledger.Open()) > 0
	err = errors.Join(err, dir.Close())
	switch {
	case owns:
		return result, &engine.Error{Op: name, Err: err, Hint: "take away what is left: drumsbench sweep " + folder}
	case !keep:
		err = errors.Join(err, os.RemoveAll(folder))
	}
	return result, err
}

// networkText is the result for a person: a table, then each layer's words.
func networkText(r bench.NetworkProbe) string {
	said := map[bench.Preservation]string{
		netprobe.Preserved: "kept by every layer that has to keep it",
		netprobe.Lost:      "lost in a layer that has to keep it",
		netprobe.Unknown:   "not known: a layer that has to keep it could not be tried",
	}
	var b strings.Builder
	fmt.Fprintf(&b, "network: %s\n\n", said[r.Verdict])
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "LAYER\tHAS TO KEEP IT\tOUTCOME\tBEFORE\tAFTER\tDUMPED")
	for _, l := range r.Layers {
		required := "no"
		if l.Required {
			required = "yes"
		}
		outcome := string(l.Outcome)
		if l.LostAt != "" {
			outcome += " at " + l.LostAt
		}
		after := networkWords(l.After)
		if l.Outcome == netprobe.Preserved {
			after = "the same"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", l.Layer, required, outcome, networkWords(l.Before), after, partWords(l.Dumped))
	}
	t.Flush()
	for _, l := range r.Layers {
		fmt.Fprintf(&b, "\n%s: %s\n", l.Layer, l.Text)
		line(&b, "  "+string(l.Outcome), terminal.Line(l.Reason))
		for _, m := range l.Missing {
			line(&b, "  gone", m)
		}
		for _, e := range l.Extra {
			line(&b, "  new", e)
		}
		line(&b, "  remedy", terminal.Line(l.Hint))
		line(&b, "  log", l.Log)
	}
	return b.String()
}

// networkWords say in short what a namespace holds.
func networkWords(n *bench.Network) string {
	if n == nil {
		return "-"
	}
	lo := "no lo"
	for _, l := range n.Links {
		switch {
		case l.Name == "lo" && l.Up:
			lo = "lo up"
		case l.Name == "lo":
			lo = "lo down"
		}
	}
	addresses := "addresses"
	if len(n.Addresses) == 1 {
		addresses = "address"
	}
	return fmt.Sprintf("%s, %d %s, %s", lo, len(n.Addresses), addresses, count(len(n.Routes), "route"))
}

func partWords(parts []bench.NetworkPart) string {
	if len(parts) == 0 {
		return "nothing"
	}
	var words []string
	for _, p := range parts {
		words = append(words, fmt.Sprintf("%s %d B", p.Kind, p.Bytes))
	}
	return strings.Join(words, ", ")
}
