package netprobe

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Marks are what a namespace gets beside lo's own addresses. A lo that comes up
// by itself, or that somebody brings up after a restore, does not have them: only
// a namespace that was kept or carried has. Both lie in networks that are for
// documentation (RFC 5737).
const (
	markAddress = "192.0.2.1/32"
	markRoute   = "198.51.100.0/24"
)

// mark puts the marks into the namespace of the calling thread or of h, and brings lo up.
func mark(h *netlink.Handle) error {
	lo, err := h.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := h.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	addr, err := netlink.ParseAddr(markAddress)
	if err != nil {
		return err
	}
	if err := h.AddrAdd(lo, addr); err != nil {
		return fmt.Errorf("add %s: %w", markAddress, err)
	}
	_, dst, err := net.ParseCIDR(markRoute)
	if err != nil {
		return err
	}
	if err := h.RouteAdd(&netlink.Route{Dst: dst, Type: unix.RTN_BLACKHOLE}); err != nil {
		return fmt.Errorf("add route to %s: %w", markRoute, err)
	}
	return nil
}

// lines is a namespace as text that can be compared.
func lines(n bench.Network) []string {
	var all []string
	for _, l := range n.Links {
		state := "down"
		if l.Up {
			state = "up"
		}
		all = append(all, strings.TrimSpace(fmt.Sprintf("link %s %s mtu %d %s", l.Name, state, l.Mtu, l.Mac)))
	}
	for kind, list := range map[string][]string{"address": n.Addresses, "route": n.Routes, "rule": n.Rules} {
		for _, text := range list {
			all = append(all, kind+" "+text)
		}
	}
	slices.Sort(all)
	return all
}

// without are the lines of a that b lacks.
func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(line string) bool { return slices.Contains(b, line) })
}

// lacks says what a namespace needs before anything is asked of a layer; empty if it has it.
func lacks(n bench.Network) string {
	if !slices.ContainsFunc(n.Links, func(l bench.Link) bool { return l.Name == "lo" && l.Up }) {
		return "lo is down"
	}
	for _, want := range []string{"lo 127.0.0.1/8 ", "lo " + markAddress + " "} {
		if !slices.ContainsFunc(n.Addresses, func(a string) bool { return strings.HasPrefix(a+" ", want) }) {
			return "there is no address " + strings.TrimSpace(want)
		}
	}
	if !slices.ContainsFunc(n.Routes, func(r string) bool { return strings.Contains(r, " "+markRoute) }) {
		return "there is no route to " + markRoute
	}
	return ""
}

// start judges what a layer gets. ok is false where it is lost already.
func start(l *bench.NetworkLayer, namespace string, n bench.Network) (ok bool) {
	l.NamespaceBefore, l.Before = namespace, &n
	if lack := lacks(n); lack != "" {
		l.Outcome, l.LostAt, l.Reason = Lost, atStart, "before anything was dumped "+lack
		return false
	}
	return true
}

// judge compares what came back with what there was.
func judge(l *bench.NetworkLayer, namespace string, n bench.Network) {
	l.NamespaceAfter, l.After = namespace, &n
	before, after := lines(*l.Before), lines(n)
	l.Missing, l.Extra = append([]string{}, without(before, after)...), append([]string{}, without(after, before)...)
	if len(l.Missing)+len(l.Extra) == 0 {
		l.Outcome = Preserved
		return
	}
	l.Outcome, l.LostAt = Lost, atRestore
	l.Reason = fmt.Sprintf("it was dumped, and %d of %d lines did not come back", len(l.Missing), len(before))
	if len(l.Missing) == 0 {
		l.Reason = fmt.Sprintf("%d lines came that were not there before", len(l.Extra))
	}
}

// carries says which images a namespace comes back from are not there, or have no entry.
func carries(images []criu.NetworkImage) (missing []string) {
	have := map[string]int64{}
	for _, i := range images {
		have[i.Kind] += i.Size
	}
	for _, kind := range []string{"netdev", "ifaddr", "route"} {
		if have[kind] <= 8 { // magic numbers only
			missing = append(missing, kind)
		}
	}
	return missing
}

// parts are images as the result has them.
func parts(images []criu.NetworkImage) []bench.NetworkPart {
	list := make([]bench.NetworkPart, len(images))
	for i, image := range images {
		list[i] = bench.NetworkPart{Kind: image.Kind, Bytes: image.Size}
	}
	return list
}
