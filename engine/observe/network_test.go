package observe

import (
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// namespace makes a network namespace for the test and gives a handle in it and
// its path. It goes with the test: nothing but two descriptors holds it.
func namespace(t *testing.T) (*netlink.Handle, string) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	ns, err := netns.New()
	if err != nil {
		t.Fatalf("make a network namespace (needs root): %v", err)
	}
	if err := netns.Set(own); err != nil {
		panic(err) // the thread must not go on in the wrong namespace
	}
	t.Cleanup(func() { ns.Close() })
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h, "/proc/self/fd/" + strconv.Itoa(int(ns))
}

func TestNetworkOfALoopback(t *testing.T) {
	h, path := namespace(t)
	down, err := NetworkAt(path)
	if err != nil {
		t.Fatal(err)
	}
	lo := bench.Link{Name: "lo", Type: "device", Up: false, Mtu: 65536}
	if i := slices.IndexFunc(down.Links, func(l bench.Link) bool { return l.Name == "lo" }); i < 0 || down.Links[i] != lo {
		t.Errorf("links before: %+v", down.Links)
	}
	if len(down.Addresses)+len(down.Routes) != 0 {
		t.Errorf("addresses and routes before: %q %q", down.Addresses, down.Routes)
	}

	link, err := h.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
	up, err := NetworkAt(path)
	if err != nil {
		t.Fatal(err)
	}
	lo.Up = true
	if i := slices.IndexFunc(up.Links, func(l bench.Link) bool { return l.Name == "lo" }); i < 0 || up.Links[i] != lo {
		t.Errorf("links after: %+v", up.Links)
	}
	want := bench.Network{
		Links:     up.Links,
		Addresses: []string{"lo 127.0.0.1/8 scope host", "lo ::1/128 scope host"},
		Routes: []string{
			"broadcast 127.255.255.255/32 dev lo table local proto kernel scope link src 127.0.0.1",
			"local 127.0.0.0/8 dev lo table local proto kernel scope host src 127.0.0.1",
			"local 127.0.0.1/32 dev lo table local proto kernel scope host src 127.0.0.1",
			"local ::1/128 dev lo table local proto kernel scope global",
		},
		Rules: []string{
			"inet 0: from all lookup local",
			"inet 32766: from all lookup main",
			"inet 32767: from all lookup default",
			"inet6 0: from all lookup local",
			"inet6 32766: from all lookup main",
		},
	}
	if diff := cmp.Diff(want, up); diff != "" {
		t.Error(diff)
	}
}

// Each edit of the network must be seen.
func TestNetworkShowsEdits(t *testing.T) {
	h, path := namespace(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	read := func() bench.Network {
		t.Helper()
		n, err := NetworkAt(path)
		must(err)
		return n
	}
	dst := func(s string) *net.IPNet {
		_, n, err := net.ParseCIDR(s)
		must(err)
		return n
	}
	lo, err := h.LinkByName("lo")
	must(err)
	must(h.LinkSetUp(lo))
	must(h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "drums0"}, PeerName: "drums1"}))
	a, err := h.LinkByName("drums0")
	must(err)
	b, err := h.LinkByName("drums1")
	must(err)
	must(h.LinkSetUp(a))
	must(h.LinkSetUp(b))

	last := read()
	step := func(name string, contains func(bench.Network) []string, text string, edit func() error) {
		t.Helper()
		if err := edit(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		now := read()
		if cmp.Equal(last, now) {
			t.Errorf("%s: not seen", name)
		}
		if text != "" && !slices.Contains(contains(now), text) {
			t.Errorf("%s: no line %q in %s", name, text, strings.Join(contains(now), "\n"))
		}
		last = now
	}
	addresses := func(n bench.Network) []string { return n.Addresses }
	routes := func(n bench.Network) []string { return n.Routes }
	rules := func(n bench.Network) []string { return n.Rules }
	addr, err := netlink.ParseAddr("10.9.0.1/24")
	must(err)
	step("address", addresses, "drums0 10.9.0.1/24 brd 10.9.0.255 scope global", func() error { return h.AddrAdd(a, addr) })
	step("route", routes, "unicast default inet via 10.9.0.2 dev drums0 table main proto boot scope global metric 7",
		func() error {
			return h.RouteAdd(&netlink.Route{Dst: dst("0.0.0.0/0"), LinkIndex: a.Attrs().Index, Gw: net.ParseIP("10.9.0.2"), Priority: 7, Protocol: 3})
		})
	step("route of a table of its own", routes, "blackhole 10.8.0.0/16 table 77 proto static scope global",
		func() error {
			return h.RouteAdd(&netlink.Route{Dst: dst("10.8.0.0/16"), Table: 77, Type: 6, Protocol: 4})
		})
	step("route with two next hops", routes,
		"unicast 10.7.0.0/16 table main proto boot scope global nexthop via 10.9.0.3 dev drums0 weight 1 nexthop via 10.9.0.4 dev drums0 weight 3",
		func() error {
			return h.RouteAdd(&netlink.Route{Dst: dst("10.7.0.0/16"), Protocol: 3, MultiPath: []*netlink.NexthopInfo{
				{LinkIndex: a.Attrs().Index, Gw: net.ParseIP("10.9.0.4"), Hops: 2}, {LinkIndex: a.Attrs().Index, Gw: net.ParseIP("10.9.0.3")}}})
		})
	rule := netlink.NewRule()
	rule.Priority, rule.Table, rule.Src, rule.Mark = 100, 77, dst("10.9.0.0/24"), 5
	step("rule", rules, "inet 100: from 10.9.0.0/24 fwmark 0x5/0xffffffff lookup 77", func() error { return h.RuleAdd(rule) })
	step("mtu", nil, "", func() error { return h.LinkSetMTU(a, 1400) })
	step("mac", nil, "", func() error { return h.LinkSetHardwareAddr(b, net.HardwareAddr{2, 0, 0, 0, 0, 9}) })
	step("down", nil, "", func() error { return h.LinkSetDown(a) })
}

func TestNetworkAtLeavesTheThreadWhereItWas(t *testing.T) {
	_, path := namespace(t)
	own, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NetworkAt(path); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		if now, err := os.Readlink("/proc/thread-self/ns/net"); err != nil || now != own {
			t.Fatalf("in %s, was in %s (%v)", now, own, err)
		}
		runtime.Gosched()
	}
	if _, err := NetworkAt("/proc/self/ns/absent"); err == nil {
		t.Error("no error for a namespace that is not there")
	}
	if _, err := NetworkAt("/proc/self/ns/uts"); err == nil {
		t.Error("no error for another kind of namespace")
	}
}

// The address of a process's namespace works like that of a descriptor.
func TestNetworkAtProcess(t *testing.T) {
	cmd := exec.Command("unshare", "--net", "sh", "-c", "ip link set lo up && echo up && read x")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); cmd.Wait() }()
	buf := make([]byte, 3)
	if _, err := out.Read(buf); err != nil {
		t.Fatal(err)
	}
	n, err := NetworkAt("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(n.Addresses, "lo 127.0.0.1/8 scope host") {
		t.Errorf("%+v", n)
	}
}
