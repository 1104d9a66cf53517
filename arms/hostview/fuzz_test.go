package hostview

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// Firewall rules of the host come in the kernel's own layout, and anybody's names are in them.
func FuzzFirewall(f *testing.F) {
	entry := make([]byte, ipv4Tables.match+4+2+2+4+xtCountersSize+32)
	binary.NativeEndian.PutUint16(entry[ipv4Tables.match+4:], uint16(len(entry)-32))
	binary.NativeEndian.PutUint16(entry[ipv4Tables.match+6:], uint16(len(entry)))
	f.Add(uint8(0), entry)
	f.Add(uint8(1), append(entry, entry...))
	table := append([]byte{unix.NFPROTO_INET, 0, 0, 0}, 8, 0, nftaTableName, 0, 'a', 'b', 0, 0)
	for i := range nftDumps {
		f.Add(uint8(2+i), table)
	}
	f.Add(uint8(4), append([]byte{unix.NFPROTO_IPV4, 0, 0, 0}, 8, 0, unix.NFTA_RULE_TABLE, 0, 'a', 'b', 0, 0, 8, 0, unix.NFTA_RULE_CHAIN, 0, 'c', 0, 0, 0,
		12, 0, unix.NFTA_RULE_HANDLE, 0, 0, 0, 0, 0, 0, 0, 0, 1, 12, 0, unix.NFTA_RULE_EXPRESSIONS, 0, 8, 0, nftaListElem, 0, 4, 0, 1, 0))
	f.Fuzz(func(t *testing.T, kind uint8, data []byte) {
		s := Snapshot{Rules: map[string]Rule{}}
		switch kind := int(kind) % (2 + len(nftDumps)); kind {
		case 0:
			s.xtRules(ipv4Tables, "filter", data)
		case 1:
			s.xtRules(ipv6Tables, "filter", data)
		default:
			if d := nftDumps[kind-2]; d.message != unix.NFT_MSG_GETSET { // whose elements are asked of the kernel
				nftThing(d, data)
			} else {
				nftExpressions(data)
			}
		}
	})
}
