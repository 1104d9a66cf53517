package hostview

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
)

// nftables are requests that are carried out together.
type nftables struct{ requests [][]byte }

func (b *nftables) add(message int, flags int, family uint8, attributes ...*nl.RtAttr) {
	kind := nftablesSubsystem | message
	if message == unix.NFNL_MSG_BATCH_BEGIN || message == unix.NFNL_MSG_BATCH_END {
		kind = message
	}
	r := nl.NewNetlinkRequest(kind, flags)
	res := uint16(0)
	if kind == message {
		res = unix.NFNL_SUBSYS_NFTABLES
	}
	r.AddData(&nl.Nfgenmsg{NfgenFamily: family, ResId: res<<8 | res>>8})
	for _, a := range attributes {
		r.AddData(a)
	}
	b.requests = append(b.requests, r.Serialize())
}

// send carries everything out; the kernel answers the last request that asks for it.
func (b *nftables) send(t *testing.T) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	must(t, err)
	defer unix.Close(fd)
	var all []byte
	begin, last := &nftables{}, &nftables{}
	begin.add(unix.NFNL_MSG_BATCH_BEGIN, 0, 0)
	last.add(unix.NFNL_MSG_BATCH_END, 0, 0)
	for _, r := range append(append(begin.requests, b.requests...), last.requests...) {
		all = append(all, r...)
	}
	must(t, unix.Sendto(fd, all, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	answer := make([]byte, 1<<16)
	for range b.requests {
		n, _, err := unix.Recvfrom(fd, answer, 0)
		must(t, err)
		if n < 20 || binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR {
			t.Fatalf("an answer of %d bytes", n)
		}
		if code := int32(binary.NativeEndian.Uint32(answer[16:])); code != 0 {
			t.Fatalf("the kernel refuses a rule: %v", unix.Errno(-code))
		}
	}
}

func text(kind int, s string) *nl.RtAttr { return nl.NewRtAttr(kind, nl.ZeroTerminated(s)) }

func number(kind int, n uint32) *nl.RtAttr { return nl.NewRtAttr(kind, nl.BEUint32Attr(n)) }

func nested(kind int, children ...*nl.RtAttr) *nl.RtAttr {
	a := nl.NewRtAttr(kind|unix.NLA_F_NESTED, nil)
	for _, c := range children {
		a.AddChild(c)
	}
	return a
}

const create = unix.NLM_F_CREATE | unix.NLM_F_ACK

func (b *nftables) table(name string) {
	b.add(unix.NFT_MSG_NEWTABLE, create, unix.NFPROTO_INET, text(nftaTableName, name))
}

func (b *nftables) chain(table, name string, policy uint32) {
	b.add(unix.NFT_MSG_NEWCHAIN, create, unix.NFPROTO_INET, text(unix.NFTA_CHAIN_TABLE, table), text(unix.NFTA_CHAIN_NAME, name),
		nested(unix.NFTA_CHAIN_HOOK, number(1, unix.NF_INET_LOCAL_OUT), number(2, 0)), text(unix.NFTA_CHAIN_TYPE, "filter"), number(unix.NFTA_CHAIN_POLICY, policy))
}

// rule counts packets and bears a comment, as nft(8) keeps one.
func (b *nftables) rule(table, chain, comment string) {
	counter := nested(nftaListElem, text(nftaExprName, "counter"), nested(nftaExprData))
	b.add(unix.NFT_MSG_NEWRULE, create|unix.NLM_F_APPEND, unix.NFPROTO_INET, text(unix.NFTA_RULE_TABLE, table), text(unix.NFTA_RULE_CHAIN, chain),
		nested(unix.NFTA_RULE_EXPRESSIONS, counter), nl.NewRtAttr(unix.NFTA_RULE_USERDATA, append([]byte{0, byte(len(comment) + 1)}, comment+"\x00"...)))
}

func (b *nftables) set(table, name string) {
	b.add(unix.NFT_MSG_NEWSET, create, unix.NFPROTO_INET, text(unix.NFTA_SET_TABLE, table), text(unix.NFTA_SET_NAME, name),
		number(unix.NFTA_SET_FLAGS, 0), number(unix.NFTA_SET_KEY_TYPE, 7), number(unix.NFTA_SET_KEY_LEN, 4), number(unix.NFTA_SET_ID, 1))
}

func (b *nftables) element(table, name string, address uint32) {
	key := nested(unix.NFTA_SET_ELEM_KEY, nl.NewRtAttr(1, nl.BEUint32Attr(address)))
	b.add(unix.NFT_MSG_NEWSETELEM, create, unix.NFPROTO_INET, text(unix.NFTA_SET_ELEM_LIST_TABLE, table), text(unix.NFTA_SET_ELEM_LIST_SET, name),
		nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, nested(nftaListElem, key)))
}

func TestNftables(t *testing.T) {
	ownNetwork(t)
	send := func(plant func(b *nftables)) {
		t.Helper()
		b := &nftables{}
		plant(b)
		b.send(t)
	}
	empty := look(t, Scope{ID: runID})
	if len(empty.Before.Unread) > 0 {
		t.Fatalf("could not be read: %v", empty.Before.Unread)
	}
	// Somebody else's are listed.
	send(func(b *nftables) {
		b.table("drums")
		b.chain("drums", "out", 1)
		b.rule("drums", "out", "somebody's")
		b.set("drums", "hosts")
	})
	findings := compare(t, empty)
	expect(t, findings)
	for _, s := range []string{"firewall table nft inet drums", "firewall chain nft inet drums out", "firewall rule nft inet drums out handle ", "firewall set nft inet drums hosts"} {
		find(t, findings, engine.Pass, s)
	}

	// Packets that are counted are no change.
	s := look(t, Scope{ID: runID})
	conn, err := net.Dial("udp4", "127.0.0.1:9")
	must(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("counted"))
	must(t, err)
	absent(t, compare(t, s), "firewall")

	// A rule of ours in their chain, and an element in their set.
	send(func(b *nftables) { b.rule("drums", "out", "drums-"+runID+" slot-0") })
	findings = compare(t, s)
	expect(t, findings, "firewall rule nft inet drums out handle ")
	requireTold(t, findings)
	s = look(t, Scope{ID: runID})
	send(func(b *nftables) { b.element("drums", "hosts", 0x0a000001) })
	find(t, compare(t, s), engine.Pass, "firewall set nft inet drums hosts")
	s = look(t, Scope{ID: runID})
	send(func(b *nftables) { b.chain("drums", "out", 0) })
	find(t, compare(t, s), engine.Pass, "firewall chain nft inet drums out")

	// A table of ours, with all that is in it.
	ours := "drums-" + runID
	s = look(t, Scope{ID: runID})
	send(func(b *nftables) {
		b.table(ours)
		b.chain(ours, "out", 1)
		b.rule(ours, "out", "")
	})
	expect(t, compare(t, s), "firewall chain nft inet "+ours, "firewall rule nft inet "+ours, "firewall table nft inet "+ours)
	send(func(b *nftables) {
		b.add(unix.NFT_MSG_DELTABLE, unix.NLM_F_ACK, unix.NFPROTO_INET, text(nftaTableName, ours))
	})
	absent(t, compare(t, s), "firewall")
}

// xtRule is one rule as the kernel lays it out, with a target of this name and content.
func xtRule(f xtFamily, packets uint64, target, content string) []byte {
	head := f.match + 12
	e := make([]byte, head+xtCountersSize+32+len(content))
	binary.NativeEndian.PutUint16(e[f.match+4:], uint16(head+xtCountersSize))
	binary.NativeEndian.PutUint16(e[f.match+6:], uint16(len(e)))
	binary.NativeEndian.PutUint64(e[head:], packets)
	copy(e[head+xtCountersSize+2:], target)
	copy(e[head+xtCountersSize+32:], content)
	return e
}

func TestRulesOfIPTables(t *testing.T) {
	for _, f := range []xtFamily{ipv4Tables, ipv6Tables} {
		rules := func(entries ...[]byte) Snapshot {
			s := Snapshot{Scope: Scope{ID: runID}, Rules: map[string]Rule{}}
			must(t, s.xtRules(f, "filter", []byte(strings.Join(texts(entries), ""))))
			return s
		}
		accept, chain := xtRule(f, 0, "", "accept"), xtRule(f, 0, xtErrorTarget, "FORWARDED\x00")
		before := rules(accept, accept, chain)
		if len(before.Rules) != 3 {
			t.Fatalf("%d rules, want 3: %v", len(before.Rules), before.Rules)
		}
		if findings := Diff(before, rules(xtRule(f, 7, "", "accept"), chain, accept)); len(findings) > 0 {
			t.Errorf("counters and order make a difference: %+v", findings)
		}
		findings := Diff(before, rules(accept, chain))
		expect(t, findings)
		find(t, findings, engine.Pass, "firewall rule "+f.word+" filter")
		findings = Diff(before, rules(accept, accept, chain, xtRule(f, 0, "", "comment drums-"+runID)))
		expect(t, findings, "firewall rule "+f.word+" filter")
		requireTold(t, findings)
	}
	var s Snapshot
	for name, damaged := range map[string][]byte{
		"short": make([]byte, 50), "endless": make([]byte, 200), "too long": func() []byte {
			e := xtRule(ipv4Tables, 0, "", "")
			binary.NativeEndian.PutUint16(e[ipv4Tables.match+6:], 4000)
			return e
		}(),
	} {
		if err := s.xtRules(ipv4Tables, "filter", damaged); err == nil {
			t.Errorf("%s rules are read", name)
		}
	}
}

func texts(list [][]byte) (out []string) {
	for _, b := range list {
		out = append(out, string(b))
	}
	return out
}

// The tables of a real kernel, if it has them: asked for, they appear, and a changed policy is a change.
func TestIPTablesOfThisKernel(t *testing.T) {
	ownNetwork(t)
	s := look(t, Scope{ID: runID})
	if len(s.Before.Unread) > 0 {
		t.Fatalf("could not be read: %v", s.Before.Unread)
	}
	if _, err := os.Stat(ipv4Tables.names); err != nil {
		if len(s.Before.Rules) > 0 {
			t.Errorf("rules on a kernel without tables: %v", s.Before.Rules)
		}
		return
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	must(t, err)
	defer unix.Close(fd)
	entries, err := ipv4Tables.entries(fd, "filter")
	must(t, err)
	findings := compare(t, s)
	expect(t, findings)
	find(t, findings, engine.Pass, "firewall rule iptables filter")

	s = look(t, Scope{ID: runID})
	absent(t, compare(t, s), "firewall")
	must(t, replaceFilter(fd, entries))
	find(t, compare(t, s), engine.Pass, "firewall rule iptables filter")
}

// replaceFilter puts the filter table back with the policy of OUTPUT set to drop.
func replaceFilter(fd int, entries []byte) error {
	info := make([]byte, iptInfoSize)
	copy(info, "filter")
	if err := getsockopt(fd, unix.SOL_IP, iptGetInfo, info); err != nil {
		return err
	}
	word := func(i int) uint32 { return binary.NativeEndian.Uint32(info[32+4*i:]) } // valid_hooks, hook_entry[5], underflow[5], num_entries, size
	last := int(word(1 + 5 + 3))
	target := last + int(binary.NativeEndian.Uint16(entries[last+ipv4Tables.match+4:]))
	binary.NativeEndian.PutUint32(entries[target+32:], ^uint32(0)) // -NF_DROP-1
	// struct ipt_replace: name, valid_hooks, num_entries, size, hook_entry[5], underflow[5], num_counters, counters, entries
	r := make([]byte, 32, 96+len(entries))
	copy(r, "filter")
	for _, i := range []int{0, 11, 12, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10} {
		r = binary.NativeEndian.AppendUint32(r, word(i))
	}
	r = binary.NativeEndian.AppendUint32(r, word(11))
	counters := make([]byte, xtCountersSize*int(word(11)))
	r = append(r, make([]byte, (8-len(r)%8)%8)...)
	r = binary.NativeEndian.AppendUint64(r, uint64(uintptr(unsafe.Pointer(&counters[0]))))
	r = append(r, entries...)
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_IP, 64, uintptr(unsafe.Pointer(&r[0])), uintptr(len(r)), 0)
	if errno != 0 {
		return fmt.Errorf("replace table: %w", errno)
	}
	return nil
}
