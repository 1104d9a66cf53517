package observe

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// NetworkAt reads the network namespace that path names, such as
// /proc/PID/ns/net. It enters the namespace for the moment in which it opens a
// socket there and leaves nothing behind in it.
func NetworkAt(path string) (bench.Network, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return bench.Network{}, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return bench.Network{}, fmt.Errorf("open a route socket in %s: %w", path, err)
	}
	defer h.Close()
	return ReadNetwork(h)
}

// ReadNetwork reads links, addresses, routes of all tables and rules of both
// families through h, and gives them as sorted text. Everything is reported as
// it is, also links that a module puts into every new namespace (sit0, tunl0).
//
// Left out, because they change while nobody changes the network: lifetimes,
// counters, a tentative address's flag, cached routes, and interface indexes,
// for which the names stand. A table that changes while it is read is read again.
//
//	address  lo 127.0.0.1/8 scope host
//	route    local 127.0.0.0/8 dev lo table local proto kernel scope host src 127.0.0.1
//	rule     inet 32766: from all lookup main
func ReadNetwork(h *netlink.Handle) (bench.Network, error) {
	n := bench.Network{Links: []bench.Link{}, Addresses: []string{}, Routes: []string{}, Rules: []string{}}
	links, err := complete(h.LinkList)
	if err != nil {
		return n, fmt.Errorf("read links: %w", err)
	}
	names := make(map[int]string, len(links))
	for _, l := range links {
		a := l.Attrs()
		names[a.Index] = a.Name
		n.Links = append(n.Links, bench.Link{
			Name: a.Name,
			Type: l.Type(),
			Up:   a.Flags&net.FlagUp != 0,
			Mtu:  int64(a.MTU),
			Mac:  a.HardwareAddr.String(),
		})
	}
	slices.SortFunc(n.Links, func(a, b bench.Link) int { return cmp.Compare(a.Name, b.Name) })

	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		addrs, err := complete(func() ([]netlink.Addr, error) { return h.AddrList(nil, family) })
		if err != nil {
			return n, fmt.Errorf("read addresses: %w", err)
		}
		for _, a := range addrs {
			n.Addresses = append(n.Addresses, addressText(a, names))
		}
		// With a filter on the table and no table named, the library gives the routes of every table.
		routes, err := complete(func() ([]netlink.Route, error) {
			return h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return n, fmt.Errorf("read routes: %w", err)
		}
		for _, r := range routes {
			n.Routes = append(n.Routes, routeText(r, names))
		}
		rules, err := complete(func() ([]netlink.Rule, error) { return h.RuleList(family) })
		// A kernel without policy routing, or without the family, has no rules and says so with these two.
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EAFNOSUPPORT) {
			return n, fmt.Errorf("read rules: %w", err)
		}
		for _, r := range rules {
			n.Rules = append(n.Rules, ruleText(r))
		}
	}
	slices.Sort(n.Addresses)
	slices.Sort(n.Routes)
	slices.Sort(n.Rules)
	return n, nil
}

// complete repeats a dump that the kernel marked as interrupted: it may lack or repeat entries.
func complete[T any](read func() ([]T, error)) ([]T, error) {
	const attempts = 5
	for i := 1; ; i++ {
		v, err := read()
		if i == attempts || !errors.Is(err, netlink.ErrDumpInterrupted) {
			return v, err
		}
	}
}

func linkName(index int, names map[int]string) string {
	if name, ok := names[index]; ok {
		return name
	}
	return "if" + strconv.Itoa(index) // a link that came after the links were read
}

func addressText(a netlink.Addr, names map[int]string) string {
	link := linkName(a.LinkIndex, names)
	w := words{link, a.IPNet.String()}
	if a.Peer != nil && a.Peer.String() != a.IPNet.String() {
		w.add("peer", a.Peer.String())
	}
	if len(a.Broadcast) > 0 {
		w.add("brd", a.Broadcast.String())
	}
	w.add("scope", scopeName(netlink.Scope(a.Scope)))
	if a.Label != "" && a.Label != link {
		w.add("label", a.Label)
	}
	for _, f := range []struct {
		bit  int
		name string
	}{
		{unix.IFA_F_DADFAILED, "dadfailed"},
		{unix.IFA_F_DEPRECATED, "deprecated"},
		{unix.IFA_F_HOMEADDRESS, "home"},
		{unix.IFA_F_MANAGETEMPADDR, "mngtmpaddr"},
		{unix.IFA_F_MCAUTOJOIN, "autojoin"},
		{unix.IFA_F_NODAD, "nodad"},
		{unix.IFA_F_NOPREFIXROUTE, "noprefixroute"},
		{unix.IFA_F_SECONDARY, "secondary"},
	} {
		if a.Flags&f.bit != 0 {
			w.add(f.name)
		}
	}
	if a.Flags&unix.IFA_F_PERMANENT == 0 {
		w.add("dynamic")
	}
	return w.String()
}

var routeTypes = map[int]string{
	unix.RTN_UNICAST: "unicast", unix.RTN_LOCAL: "local", unix.RTN_BROADCAST: "broadcast", unix.RTN_ANYCAST: "anycast",
	unix.RTN_MULTICAST: "multicast", unix.RTN_BLACKHOLE: "blackhole", unix.RTN_UNREACHABLE: "unreachable",
	unix.RTN_PROHIBIT: "prohibit", unix.RTN_THROW: "throw", unix.RTN_NAT: "nat",
}

var tables = map[int]string{unix.RT_TABLE_LOCAL: "local", unix.RT_TABLE_MAIN: "main", unix.RT_TABLE_DEFAULT: "default"}

func nameOf(names map[int]string, n int) string {
	if name, ok := names[n]; ok {
		return name
	}
	return strconv.Itoa(n)
}

// scopeName is the name that ip(8) uses; the library says "universe" for global.
func scopeName(s netlink.Scope) string {
	if s == netlink.SCOPE_UNIVERSE {
		return "global"
	}
	return s.String()
}

func routeText(r netlink.Route, names map[int]string) string {
	dst := "default"
	if r.Dst != nil && r.Dst.String() != "0.0.0.0/0" && r.Dst.String() != "::/0" {
		dst = r.Dst.String()
	}
	family := "inet"
	if r.Family == netlink.FAMILY_V6 {
		family = "inet6"
	}
	w := words{nameOf(routeTypes, r.Type), dst}
	if dst == "default" {
		w.add(family)
	}
	if r.Tos != 0 {
		w.add("tos", strconv.Itoa(r.Tos))
	}
	if len(r.Gw) > 0 {
		w.add("via", r.Gw.String())
	}
	if r.Via != nil {
		w.add("via", r.Via.String())
	}
	if r.Encap != nil {
		w.add("encap", r.Encap.String())
	}
	if r.LinkIndex != 0 {
		w.add("dev", linkName(r.LinkIndex, names))
	}
	w.add("table", nameOf(tables, r.Table), "proto", r.Protocol.String(), "scope", scopeName(r.Scope))
	if len(r.Src) > 0 {
		w.add("src", r.Src.String())
	}
	for _, v := range []struct {
		name  string
		value int
	}{
		{"metric", r.Priority}, {"mtu", r.MTU}, {"advmss", r.AdvMSS}, {"window", r.Window}, {"rtt", r.Rtt}, {"rttvar", r.RttVar},
		{"ssthresh", r.Ssthresh}, {"cwnd", r.Cwnd}, {"reordering", r.Reordering}, {"hoplimit", r.Hoplimit}, {"initcwnd", r.InitCwnd},
		{"initrwnd", r.InitRwnd}, {"features", r.Features}, {"quickack", r.QuickACK}, {"rto_min", r.RtoMin},
		{"fastopen_no_cookie", r.FastOpenNoCookie}, {"realm", r.Realm}, {"iif", r.ILinkIndex},
	} {
		if v.value != 0 {
			w.add(v.name, strconv.Itoa(v.value))
		}
	}
	if r.MTULock {
		w.add("mtu_lock")
	}
	if r.RtoMinLock {
		w.add("rto_min_lock")
	}
	if r.Congctl != "" {
		w.add("congctl", r.Congctl)
	}
	w.add(nexthopFlags(r.Flags)...)
	hops := make([]string, len(r.MultiPath))
	for i, hop := range r.MultiPath {
		h := words{"nexthop"}
		if len(hop.Gw) > 0 {
			h.add("via", hop.Gw.String())
		}
		if hop.Via != nil {
			h.add("via", hop.Via.String())
		}
		if hop.Encap != nil {
			h.add("encap", hop.Encap.String())
		}
		h.add("dev", linkName(hop.LinkIndex, names), "weight", strconv.Itoa(hop.Hops+1))
		h.add(nexthopFlags(hop.Flags)...)
		hops[i] = h.String()
	}
	slices.Sort(hops)
	w.add(hops...)
	return w.String()
}

func nexthopFlags(flags int) []string {
	var out []string
	for _, f := range []struct {
		bit  int
		name string
	}{
		{unix.RTNH_F_DEAD, "dead"}, {unix.RTNH_F_PERVASIVE, "pervasive"}, {unix.RTNH_F_ONLINK, "onlink"}, {unix.RTNH_F_LINKDOWN, "linkdown"},
	} {
		if flags&f.bit != 0 {
			out = append(out, f.name)
		}
	}
	return out
}

func ruleText(r netlink.Rule) string {
	family := "inet"
	if r.Family == netlink.FAMILY_V6 {
		family = "inet6"
	}
	w := words{family, strconv.Itoa(r.Priority) + ":"}
	if r.Invert {
		w.add("not")
	}
	network := func(n *net.IPNet) string {
		if n == nil {
			return "all"
		}
		return n.String()
	}
	w.add("from", network(r.Src))
	if r.Dst != nil {
		w.add("to", network(r.Dst))
	}
	if r.Tos != 0 {
		w.add("tos", strconv.Itoa(int(r.Tos)))
	}
	if r.Mark != 0 || r.Mask != nil {
		mask := uint32(0xffffffff)
		if r.Mask != nil {
			mask = *r.Mask
		}
		if r.Mark != 0 || mask != 0 {
			w.add("fwmark", fmt.Sprintf("%#x/%#x", r.Mark, mask))
		}
	}
	if r.IifName != "" {
		w.add("iif", r.IifName)
	}
	if r.OifName != "" {
		w.add("oif", r.OifName)
	}
	if r.IPProto > 0 {
		w.add("ipproto", strconv.Itoa(r.IPProto))
	}
	if r.Sport != nil {
		w.add("sport", fmt.Sprintf("%d-%d", r.Sport.Start, r.Sport.End))
	}
	if r.Dport != nil {
		w.add("dport", fmt.Sprintf("%d-%d", r.Dport.Start, r.Dport.End))
	}
	if r.UIDRange != nil {
		w.add("uidrange", fmt.Sprintf("%d-%d", r.UIDRange.Start, r.UIDRange.End))
	}
	if r.TunID != 0 {
		w.add("tun_id", strconv.FormatUint(uint64(r.TunID), 10))
	}
	// -1 is the library's word for an absent number.
	if r.Flow > 0 {
		w.add("realms", strconv.Itoa(r.Flow))
	}
	w.add("lookup", nameOf(tables, r.Table))
	if r.Goto > 0 {
		w.add("goto", strconv.Itoa(r.Goto))
	}
	if r.SuppressPrefixlen >= 0 {
		w.add("suppress_prefixlength", strconv.Itoa(r.SuppressPrefixlen))
	}
	if r.SuppressIfgroup >= 0 {
		w.add("suppress_ifgroup", strconv.Itoa(r.SuppressIfgroup))
	}
	return w.String()
}

// words is a line that grows word by word.
type words []string

func (w *words) add(more ...string) { *w = append(*w, more...) }

func (w words) String() string { return strings.Join(w, " ") }
