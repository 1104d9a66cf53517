package netprobe

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/armtest"
	"github.com/drumsbench/drumsbench/arms/hostview"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// stateDir is where scripts/setup put criu.
func stateDir() string {
	if s := os.Getenv("DRUMSBENCH_STATE"); s != "" {
		return s
	}
	return "/var/lib/drumsbench"
}

// probed runs a probe on a run of its own and requires that nothing of it is left.
func probed(t *testing.T, o Options) (bench.NetworkProbe, error) {
	t.Helper()
	return probedWithin(t, t.Context(), stateDir(), o)
}

func probedWithin(t *testing.T, ctx context.Context, state string, o Options) (bench.NetworkProbe, error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("the network probe needs root")
	}
	dir := t.TempDir()
	ws, done := armtest.Workspace(t, dir, state)
	scope := hostview.Scope{ID: ws.ID, Paths: []string{dir}}
	before, err := hostview.Take(t.Context(), scope)
	must(t, err)

	result, err := Probe(ctx, ws, o)
	if rerr := ws.Release(context.Background()); rerr != nil {
		t.Fatalf("%v; the probe: %v, %+v", rerr, err, result)
	}
	must(t, ws.Release(context.Background()))
	must(t, done())
	if open, _, err := record.ReadLedger(filepath.Join(ws.Run, record.LedgerFile)); err != nil || len(open) > 0 {
		t.Errorf("the ledger owns %+v, %v", open, err)
	}
	var left []string
	for range 50 { // as the clean-up gate, it gives the kernel a moment
		after, err := hostview.Take(context.Background(), scope)
		must(t, err)
		left = nil
		for _, f := range hostview.Diff(before, after) {
			if f.Verdict == engine.Fail {
				left = append(left, f.Subject+" "+f.Text)
			}
		}
		if left == nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if left != nil {
		t.Errorf("the host is not as it was: %s", strings.Join(left, "; "))
	}
	text, jerr := json.Marshal(result)
	must(t, jerr)
	if err == nil {
		must(t, compile.Validate("NetworkProbe", text))
	}
	return result, err
}

// layer finds a layer in a result.
func layer(t *testing.T, r bench.NetworkProbe, name string) bench.NetworkLayer {
	t.Helper()
	i := slices.IndexFunc(r.Layers, func(l bench.NetworkLayer) bool { return l.Layer == name })
	if i < 0 {
		t.Fatalf("there is no layer %s in %+v", name, r.Layers)
	}
	return r.Layers[i]
}

func images(l bench.NetworkLayer) map[string]int64 {
	found := map[string]int64{}
	for _, d := range l.Dumped {
		found[d.Kind] += d.Bytes
	}
	return found
}

// What each layer keeps on this host.
func TestLayers(t *testing.T) {
	r, err := probed(t, Options{})
	must(t, err)
	for _, l := range r.Layers {
		t.Logf("%s: %s at %q: %s; %s; log %s; dumped %v; missing %q; extra %q; %s -> %s; %s ns", l.Layer, l.Outcome, l.LostAt, l.Reason, l.Hint, l.Log, images(l), l.Missing, l.Extra, l.NamespaceBefore, l.NamespaceAfter, l.Nanoseconds)
	}
	if r.Verdict != Preserved {
		t.Errorf("verdict %s", r.Verdict)
	}
	for name, want := range map[string]bench.Preservation{Kernel: Preserved, CRIU: Preserved, ociOwn: Lost, ociHolder: Preserved} {
		if l := layer(t, r, name); l.Outcome != want || l.Before == nil || l.After == nil {
			t.Errorf("%s: %s, want %s", name, l.Outcome, want)
		}
	}
	for _, kind := range []string{"netdev", "ifaddr", "route", "rule", "netns"} {
		if images(layer(t, r, CRIU))[kind] <= 8 {
			t.Errorf("criu dumped no %s", kind)
		}
	}
	own := layer(t, r, ociOwn)
	if own.LostAt != atDump || images(own)["netdev"] != 0 || !slices.ContainsFunc(own.Missing, func(s string) bool { return strings.HasPrefix(s, "link lo up") }) ||
		!slices.ContainsFunc(own.Extra, func(s string) bool { return strings.HasPrefix(s, "link lo down") }) {
		t.Errorf("a namespace of runc's own: %+v", own)
	}
	held := layer(t, r, ociHolder)
	if held.NamespaceBefore != held.NamespaceAfter || images(held)["netdev"] != 0 || images(held)["netns"] == 0 {
		t.Errorf("a holder's namespace: %+v", held)
	}
}

// setLo plants a fault in the namespace at path.
func setLo(path string, change func(*netlink.Handle, netlink.Link) error) error {
	ns, err := vnetns.GetFromPath(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err != nil {
		return err
	}
	return change(h, lo)
}

func loDown(h *netlink.Handle, lo netlink.Link) error { return h.LinkSetDown(lo) }

func unmark(h *netlink.Handle, lo netlink.Link) error {
	addr, err := netlink.ParseAddr(markAddress)
	if err != nil {
		return err
	}
	return h.AddrDel(lo, addr)
}

// Each layer sees what is lost, and where.
func TestPlantedLosses(t *testing.T) {
	plant := func(layer, stage string, change func(*netlink.Handle, netlink.Link) error) Options {
		return Options{stage: func(l, s, path string) error {
			if l == layer && s == stage {
				return setLo(path, change)
			}
			return nil
		}}
	}
	for _, c := range []struct {
		name          string
		ask           string
		layer, lostAt string
		options       Options
	}{
		{"a holder without lo up", OCI, ociHolder, atStart, plant(ociHolder, stageReady, loDown)},
		{"a holder whose lo goes down while the container is away", OCI, ociHolder, atRestore, plant(ociHolder, stageDumped, loDown)},
		{"a holder that loses an address while the container is away", OCI, ociHolder, atRestore, plant(ociHolder, stageDumped, unmark)},
		{"lo down under criu", CRIU, CRIU, atStart, plant(CRIU, stageReady, loDown)},
		{"lo down in the kernel", Kernel, Kernel, atStart, plant(Kernel, stageReady, loDown)},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.options.Layers = []string{c.ask}
			r, err := probed(t, c.options)
			must(t, err)
			l := layer(t, r, c.layer)
			if r.Verdict != Lost || l.Outcome != Lost || l.LostAt != c.lostAt || l.Reason == "" {
				t.Errorf("verdict %s, layer %+v", r.Verdict, l)
			}
		})
	}
}

// What could not be tried is unknown, says what to do and leaves nothing.
func TestUnknown(t *testing.T) {
	nowhere := t.TempDir()
	broken := filepath.Join(nowhere, "runc")
	must(t, os.WriteFile(broken, []byte("#!/bin/sh\ntest \"$1\" = --version && echo 'runc version 9' || exit 1\n"), 0o755))
	failing := func(layer, stage string) func(string, string, string) error {
		return func(l, s, _ string) error {
			if l == layer && s == stage {
				return errors.New("as planted")
			}
			return nil
		}
	}
	for _, c := range []struct {
		name, state string
		options     Options
		layer       string
		hint        string
	}{
		{"no runc", stateDir(), Options{Layers: []string{OCI}, Runc: filepath.Join(nowhere, "none")}, ociHolder, runcHint},
		{"a runc that fails", stateDir(), Options{Layers: []string{OCI}, Runc: broken}, ociHolder, ""},
		{"no criu", nowhere, Options{Layers: []string{CRIU}}, CRIU, "scripts/setup"},
		{"a criu layer that breaks off before the dump", stateDir(), Options{Layers: []string{CRIU}, stage: failing(CRIU, stageReady)}, CRIU, ""},
		{"a criu layer that breaks off after it", stateDir(), Options{Layers: []string{CRIU}, stage: failing(CRIU, stageDumped)}, CRIU, ""},
		{"a container that breaks off before the dump", stateDir(), Options{Layers: []string{OCI}, stage: failing(ociHolder, stageReady)}, ociHolder, ""},
		{"a container that breaks off after it", stateDir(), Options{Layers: []string{OCI}, stage: failing(ociHolder, stageDumped)}, ociHolder, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := probedWithin(t, t.Context(), c.state, c.options)
			must(t, err)
			l := layer(t, r, c.layer)
			if r.Verdict != Unknown || l.Outcome != Unknown || l.Reason == "" || !strings.Contains(l.Hint, c.hint) {
				t.Errorf("verdict %s, layer %+v", r.Verdict, l)
			}
		})
	}
	t.Run("a setting of the host's that runc's criu would read", func(t *testing.T) {
		t.Setenv("CRIU_CONFIG_FILE", filepath.Join(nowhere, "criu.conf"))
		r, err := probed(t, Options{Layers: []string{OCI}})
		must(t, err)
		if l := layer(t, r, ociHolder); l.Outcome != Unknown || !strings.Contains(l.Reason, "CRIU_CONFIG_FILE") || l.Hint == "" {
			t.Errorf("%+v", l)
		}
	})
	if _, err := probed(t, Options{Layers: []string{"roof"}}); !errors.Is(err, engine.ErrUsage) {
		t.Errorf("a layer that there is not: %v", err)
	}
}
