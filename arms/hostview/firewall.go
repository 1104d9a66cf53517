package hostview

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// readFirewall reads the rules of our network namespace: nftables by netlink, the
// older iptables by its socket options. What cannot be read is noted in Unread.
func readFirewall(s *Snapshot) error {
	s.Rules = map[string]Rule{}
	for name, read := range map[string]func(*Snapshot) error{
		"nftables":  readNftables,
		"iptables":  readIPTables,
		"ip6tables": readIP6Tables,
	} {
		if err := read(s); err != nil {
			s.Unread["firewall "+name] = err.Error()
		}
	}
	return nil
}

// nftDump is one kind of thing that the kernel lists, and the attributes (see
// linux/netfilter/nf_tables.h) that say where it stands.
type nftDump struct {
	word    string
	message int
	// key are the attributes that name a thing; the first is the table.
	key []uint16
	// moving are those that change by themselves: counters, uses, the place among others.
	moving []uint16
}

// Attributes that package unix does not have.
const (
	nftaTableName        = 1
	nftaTableUse         = 3
	nftaChainUse         = 6
	nftaFlowtableTable   = 1
	nftaFlowtableName    = 2
	nftaFlowtableUse     = 5
	nftaListElem         = 1
	nftaExprName         = 1
	nftaExprData         = 2
	nftaObjData          = 4
	nftaObjUse           = 5
	nftSetElemExpiration = unix.NFTA_SET_ELEM_EXPIRATION
	nlaTypeMask          = 0x3fff
	nftSetDynamic        = unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT
	nfgenmsgSize         = 4
	nftablesSubsystem    = unix.NFNL_SUBSYS_NFTABLES << 8
)

var nftDumps = []nftDump{
	{"table", unix.NFT_MSG_GETTABLE, []uint16{nftaTableName}, []uint16{nftaTableUse}},
	{"chain", unix.NFT_MSG_GETCHAIN, []uint16{unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME}, []uint16{nftaChainUse, unix.NFTA_CHAIN_COUNTERS}},
	{"rule", unix.NFT_MSG_GETRULE, []uint16{unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN, unix.NFTA_RULE_HANDLE}, []uint16{unix.NFTA_RULE_POSITION}},
	{"set", unix.NFT_MSG_GETSET, []uint16{unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME}, nil},
	{"object", unix.NFT_MSG_GETOBJ, []uint16{unix.NFTA_OBJ_TABLE, unix.NFTA_OBJ_NAME}, []uint16{nftaObjUse, nftaObjData}},
	{"flowtable", unix.NFT_MSG_GETFLOWTABLE, []uint16{nftaFlowtableTable, nftaFlowtableName}, []uint16{nftaFlowtableUse}},
}

func readNftables(s *Snapshot) error {
	var rules map[string]Rule
	err := complete(func() error {
		rules = map[string]Rule{}
		for _, d := range nftDumps {
			messages, err := nftList(d.message, unix.AF_UNSPEC)
			if none(err) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("list %ss: %w", d.word, err)
			}
			for _, m := range messages {
				name, content, err := nftThing(d, m)
				if err != nil {
					return err
				}
				rules[name] = rule(s.Scope, d.word, name, content)
			}
		}
		return nil
	})
	maps.Copy(s.Rules, rules)
	return err
}

// none says that the kernel has no nf_tables, or no netlink for it: then there
// are no rules. The request has nothing else in it that could be invalid
// (nfnetlink_rcv_msg).
func none(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
}

func nftList(message int, family uint8, attributes ...*nl.RtAttr) ([][]byte, error) {
	req := nl.NewNetlinkRequest(nftablesSubsystem|message, unix.NLM_F_DUMP)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	for _, a := range attributes {
		req.AddData(a)
	}
	return req.Execute(unix.NETLINK_NETFILTER, 0)
}

var nftFamilies = map[uint8]string{
	unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6",
	unix.NFPROTO_ARP: "arp", unix.NFPROTO_BRIDGE: "bridge", unix.NFPROTO_NETDEV: "netdev",
}

// parseAttributes is nl.ParseRouteAttr for any bytes: that one trusts each length that it reads.
func parseAttributes(b []byte) ([]syscall.NetlinkRouteAttr, error) {
	for rest := b; len(rest) >= unix.SizeofNlAttr; {
		n := int(binary.NativeEndian.Uint16(rest))
		padded := (n + unix.NLA_ALIGNTO - 1) &^ (unix.NLA_ALIGNTO - 1)
		if n < unix.SizeofNlAttr || padded > len(rest) {
			return nil, fmt.Errorf("an attribute of %d bytes in %d", n, len(rest))
		}
		rest = rest[padded:]
	}
	return nl.ParseRouteAttr(b)
}

// nftThing is the name and the content of one thing that the kernel listed.
func nftThing(d nftDump, message []byte) (name string, content []byte, err error) {
	if len(message) < nfgenmsgSize {
		return "", nil, fmt.Errorf("a %s of %d bytes", d.word, len(message))
	}
	family := message[0]
	attributes, err := parseAttributes(message[nfgenmsgSize:])
	if err != nil {
		return "", nil, fmt.Errorf("read %s: %w", d.word, err)
	}
	words := []string{d.word, "nft", cmp.Or(nftFamilies[family], fmt.Sprint("family ", family))}
	for _, k := range d.key {
		value, ok := attribute(attributes, k)
		switch {
		case !ok:
			return "", nil, fmt.Errorf("a %s without attribute %d", d.word, k)
		case d.message == unix.NFT_MSG_GETRULE && k == unix.NFTA_RULE_HANDLE && len(value) == 8:
			words = append(words, fmt.Sprint("handle ", binary.BigEndian.Uint64(value)))
		default:
			words = append(words, unix.ByteSliceToString(value))
		}
	}
	for i, a := range attributes {
		if d.message == unix.NFT_MSG_GETRULE && a.Attr.Type&nlaTypeMask == unix.NFTA_RULE_EXPRESSIONS {
			attributes[i].Value = nftExpressions(a.Value)
		}
	}
	content = nftContent(attributes, d.moving)
	if d.message == unix.NFT_MSG_GETSET {
		elements, err := nftElements(family, attributes)
		if err != nil {
			return "", nil, err
		}
		content = append(content, elements...)
	}
	return strings.Join(words, " "), content, nil
}

// rule digests content; the claim may be in the name or anywhere in the content.
func rule(scope Scope, word, name string, content []byte) Rule {
	return Rule{Text: word + " with content " + digest(content), Ours: scope.bears(name) || scope.bears(string(content))}
}

func attribute(list []syscall.NetlinkRouteAttr, kind uint16) ([]byte, bool) {
	for _, a := range list {
		if a.Attr.Type&nlaTypeMask == kind {
			return a.Value, true
		}
	}
	return nil, false
}

// stateful expressions carry how far they have counted.
var stateful = []string{"counter", "quota", "limit", "connlimit", "last"}

// nftContent is what an object says, without what changes by itself.
func nftContent(attributes []syscall.NetlinkRouteAttr, moving []uint16) []byte {
	var out []byte
	for _, a := range attributes {
		kind := a.Attr.Type & nlaTypeMask
		if slices.Contains(moving, kind) {
			continue
		}
		out = binary.BigEndian.AppendUint16(out, kind)
		out = append(out, a.Value...)
	}
	return out
}

// nftExpressions is what a rule does, without how far it has counted.
func nftExpressions(list []byte) []byte {
	elements, err := parseAttributes(list)
	if err != nil {
		return list
	}
	var out []byte
	for _, e := range elements {
		parts, err := parseAttributes(e.Value)
		name, _ := attribute(parts, nftaExprName)
		if err == nil && slices.Contains(stateful, unix.ByteSliceToString(name)) {
			out = append(out, name...)
			continue
		}
		out = append(out, e.Value...)
	}
	return out
}

// nftElements lists a set's elements, sorted; of a set that packets fill, or
// that empties itself, none.
func nftElements(family uint8, set []syscall.NetlinkRouteAttr) ([]byte, error) {
	flags, _ := attribute(set, unix.NFTA_SET_FLAGS)
	if len(flags) == 4 && binary.BigEndian.Uint32(flags)&nftSetDynamic != 0 {
		return nil, nil
	}
	table, _ := attribute(set, unix.NFTA_SET_TABLE)
	name, _ := attribute(set, unix.NFTA_SET_NAME)
	messages, err := nftList(unix.NFT_MSG_GETSETELEM, family,
		nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_TABLE, table), nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_SET, name))
	if errors.Is(err, unix.ENOENT) { // it went
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list elements of set %s: %w", unix.ByteSliceToString(name), err)
	}
	var all [][]byte
	for _, m := range messages {
		attributes, err := parseAttributes(m[min(len(m), nfgenmsgSize):])
		if err != nil {
			return nil, err
		}
		list, _ := attribute(attributes, unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		elements, err := parseAttributes(list)
		if err != nil {
			return nil, err
		}
		for _, e := range elements {
			parts, err := parseAttributes(e.Value)
			if err != nil {
				return nil, err
			}
			// An element's own expressions count, too.
			all = append(all, nftContent(parts, []uint16{unix.NFTA_SET_ELEM_EXPR, unix.NFTA_SET_ELEM_EXPIRATION}))
		}
	}
	slices.SortFunc(all, bytes.Compare)
	return bytes.Join(all, nil), nil
}
