package hostview

import (
	"fmt"
	"path"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/drumsbench/drumsbench/engine"
)

func TestSysctlChanged(t *testing.T) {
	ownNetwork(t)
	const file, name = "/proc/sys/net/ipv4/ip_unprivileged_port_start", "sysctl net.ipv4.ip_unprivileged_port_start"
	s := look(t, Scope{ID: runID})
	old := s.Before.Sysctls["net.ipv4.ip_unprivileged_port_start"]
	if old == "" || len(s.Before.Sysctls) < 500 {
		t.Fatalf("%d values were read; the one that is changed is %q", len(s.Before.Sysctls), old)
	}
	set(t, file, "1000")
	findings := compare(t, s)
	expect(t, findings, name+" has another value 1000")
	requireTold(t, findings)
	if f := find(t, findings, engine.Fail, name); f.Want != old || f.Have != "1000" {
		t.Errorf("want %q have %q in %+v", old, "1000", f)
	}
	set(t, file, old)
	expect(t, compare(t, s))
}

// The values of a link come and go with it.
func TestSysctlsOfALink(t *testing.T) {
	ownNetwork(t)
	add := func(forwarding string) *netlink.Veth {
		l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "drums.7"}, PeerName: "drums.8"}
		must(t, netlink.LinkAdd(l))
		set(t, "/proc/sys/net/ipv4/conf/drums.7/forwarding", forwarding)
		return l
	}
	before := look(t, Scope{ID: runID})
	first := add("0")
	findings := compare(t, before)
	expect(t, findings)
	find(t, findings, engine.Pass, "link drums.7")
	absent(t, findings, "sysctl")

	with := look(t, Scope{ID: runID})
	set(t, "/proc/sys/net/ipv4/conf/drums.7/forwarding", "1")
	expect(t, compare(t, with), "sysctl net.ipv4.conf.drums/7.forwarding")
	// Another link of the same name has values of its own.
	must(t, netlink.LinkDel(first))
	second := add("1")
	findings = compare(t, with)
	expect(t, findings)
	find(t, findings, engine.Pass, "link drums.7")
	must(t, netlink.LinkDel(second))
	expect(t, compare(t, with))
}

func TestSysctlsThatChangeByThemselves(t *testing.T) {
	for _, v := range sysctlVolatile {
		for _, pattern := range strings.Fields(v.patterns) {
			if _, err := path.Match(pattern, ""); err != nil || v.reason == "" {
				t.Errorf("pattern %q, reason %q: %v", pattern, v.reason, err)
			}
		}
	}
	for name, want := range map[string]bool{
		"kernel.random.uuid": true, "fs.file-nr": true, "fs.quota.syncs": true, "fs.quota.warnings": false, "kernel.pty.nr": true, "kernel.ns_last_pid": true,
		"net.netfilter.nf_conntrack_count": true, "net.ipv6.conf.eth0.hop_limit": true, "net.ipv6.conf.eth0/7.hop_limit": true,
		"kernel.random.boot_id": false, "kernel.pty.max": false, "fs.file-max": false, "net.ipv4.ip_forward": false,
		"net.netfilter.nf_conntrack_max": false, "vm.swappiness": false, "net.ipv6.conf.eth0.forwarding": false,
	} {
		if got := volatileReason(name) != ""; got != want {
			t.Errorf("%s changes by itself: %v, want %v", name, got, want)
		}
	}
	s := look(t, Scope{ID: runID})
	if again := look(t, Scope{ID: runID}); again.Before.Sysctls["kernel.random.uuid"] == s.Before.Sysctls["kernel.random.uuid"] {
		t.Error("kernel.random.uuid did not change: nothing was tested")
	}
	absent(t, compare(t, s), "sysctl")
	for name := range sysctlNever {
		if _, read := s.Before.Sysctls[name]; read {
			t.Errorf("%s was read", name)
		}
	}
}

func TestSysctlNames(t *testing.T) {
	for at, want := range map[string]string{
		"/proc/sys/vm/swappiness":                     "vm.swappiness",
		"/proc/sys/net/ipv4/conf/eth0.100/forwarding": "net.ipv4.conf.eth0/100.forwarding",
	} {
		if got := sysctlName(at); got != want {
			t.Errorf("%s is named %s, want %s", at, got, want)
		}
	}
	for name, want := range map[string]string{
		"net.ipv4.conf.eth0/100.forwarding": "eth0.100", "net.ipv6.neigh.lo.app_solicit": "lo",
		"net.ipv4.conf.all.forwarding": "", "net.ipv4.neigh.default.gc_interval": "", "net.ipv4.ip_forward": "", "vm.swappiness": "",
	} {
		if got := linkOf(name); got != want {
			t.Errorf("%s is of link %q, want %q", name, got, want)
		}
	}
	if hidden("net.ipv4.tcp_fastopen_key", "secret") == "secret" || hidden("vm.swappiness", "60") != "60" {
		t.Error("keys must not get into a record, and values must")
	}
}

// A value of a module that was loaded meanwhile is listed; what cannot be read is unknown.
func TestSysctlsAppearAndCannotBeRead(t *testing.T) {
	before := Snapshot{Sysctls: map[string]string{"kernel.x": "1", "kernel.key": "3"}}
	after := Snapshot{Sysctls: map[string]string{"kernel.x": "1", "net.module.y": "2"}, Unread: map[string]string{"sysctl kernel.key": "input/output error"}}
	findings := Diff(before, after)
	expect(t, findings)
	find(t, findings, engine.Pass, "sysctl net.module.y")
	if f := find(t, findings, engine.VerdictUnknown, "sysctl kernel.key"); f.Have != "input/output error" {
		t.Errorf("the reason is lost: %+v", f)
	}
	// Unknown before the run is unknown after it.
	find(t, Diff(after, before), engine.VerdictUnknown, "sysctl kernel.key")
}

// On a busy host the foreign changes of a kind are counted from some number on; ours never.
func TestForeignChangesAreCounted(t *testing.T) {
	before, after := Snapshot{}, Snapshot{Scope: Scope{ID: runID}, Cgroups: map[string]bool{}}
	for i := range 40 {
		after.Cgroups[fmt.Sprintf("/sys/fs/cgroup/other-%d", i)] = true
		after.Cgroups[fmt.Sprintf("/sys/fs/cgroup/drums-%s/slot-%d", runID, i)] = true
	}
	findings := Diff(before, after)
	if n := len(fails(findings)); n != 40 {
		t.Errorf("%d of ours are named, want 40", n)
	}
	if n := len(findings) - 40; n != listed+1 {
		t.Errorf("%d foreign findings, want %d and their rest", n, listed)
	}
	if f := find(t, findings, engine.Pass, "control group"); f.Text == "" {
		t.Error("no text")
	}
}
