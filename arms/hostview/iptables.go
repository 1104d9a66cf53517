package hostview

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The older iptables, as linux/netfilter_ipv4/ip_tables.h and x_tables.h have it.
// Its tables exist once somebody asked for one; only those are asked about, since
// a question about another would make it.
const (
	iptGetInfo    = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
	iptGetEntries = 65

	xtTableNameSize = 32
	iptInfoSize     = 84 // struct ipt_getinfo: name, 13 numbers of 4 bytes
	iptEntriesHead  = 40 // struct ipt_get_entries: name, size, and the alignment of what follows
	xtCountersSize  = 16
	xtErrorTarget   = "ERROR"
)

// xtFamily is where a family's rules are read and how its entries are laid out.
type xtFamily struct {
	word, names string
	domain      int
	level       int
	// match is the size of what a rule compares: struct ipt_ip, struct ip6t_ip6.
	match int
}

// /proc/net would be of the process's first thread.
var (
	ipv4Tables = xtFamily{"iptables", "/proc/thread-self/net/ip_tables_names", unix.AF_INET, unix.SOL_IP, 84}
	ipv6Tables = xtFamily{"ip6tables", "/proc/thread-self/net/ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6, 136}
)

func readIPTables(s *Snapshot) error  { return s.readXTables(ipv4Tables) }
func readIP6Tables(s *Snapshot) error { return s.readXTables(ipv6Tables) }

func (s *Snapshot) readXTables(f xtFamily) error {
	text, err := os.ReadFile(f.names)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the kernel has none, and so there are no rules
	}
	if err != nil {
		return err
	}
	names := strings.Fields(string(text))
	if len(names) == 0 {
		return nil
	}
	fd, err := unix.Socket(f.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, name := range names {
		var entries []byte
		var err error
		for range 20 { // EAGAIN: it got another size between the two questions
			if entries, err = f.entries(fd, name); !errors.Is(err, unix.EAGAIN) {
				break
			}
		}
		if errors.Is(err, unix.ENOENT) { // it went
			continue
		}
		if err == nil {
			err = s.xtRules(f, name, entries)
		}
		if err != nil {
			return fmt.Errorf("table %s: %w", name, err)
		}
	}
	return nil
}

// entries of a table, as the kernel lays them out.
func (f xtFamily) entries(fd int, table string) ([]byte, error) {
	info := make([]byte, iptInfoSize)
	copy(info[:xtTableNameSize-1], table)
	if err := getsockopt(fd, f.level, iptGetInfo, info); err != nil {
		return nil, err
	}
	size := binary.NativeEndian.Uint32(info[iptInfoSize-4:])
	all := make([]byte, iptEntriesHead+int(size))
	copy(all[:xtTableNameSize-1], table)
	binary.NativeEndian.PutUint32(all[xtTableNameSize:], size)
	if err := getsockopt(fd, f.level, iptGetEntries, all); err != nil {
		return nil, err
	}
	return all[iptEntriesHead:], nil
}

// getsockopt is the call with a buffer of any size, which package unix has not.
func getsockopt(fd, level, option int, buffer []byte) error {
	size := uint32(len(buffer))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&buffer[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// xtRules notes a table's rules by chain and content: a rule has no name. What is
// noted of one does not change with the rules beside it, but for a jump to a
// chain of somebody's own, which is by its place in the table.
func (s *Snapshot) xtRules(f xtFamily, table string, entries []byte) error {
	seen := map[string]int{}
	for at := 0; at < len(entries); {
		// struct ipt_entry: the match, nfcache, target_offset, next_offset, comefrom, counters, then matches and target.
		head := f.match + 4 + 2 + 2 + 4
		if len(entries)-at < head+xtCountersSize {
			return fmt.Errorf("its last rule has %d bytes", len(entries)-at)
		}
		e := entries[at:]
		target, next := int(binary.NativeEndian.Uint16(e[f.match+4:])), int(binary.NativeEndian.Uint16(e[f.match+6:]))
		if next < head+xtCountersSize || next > len(e) || target < head+xtCountersSize || target+4 > next {
			return fmt.Errorf("a rule at %d of %d bytes with its target at %d", at, next, target)
		}
		// Without nfcache, comefrom and the counters.
		content := bytes.Join([][]byte{e[:f.match], e[head+xtCountersSize : next]}, nil)
		text := digest(content)
		seen[text]++
		name := fmt.Sprintf("rule %s %s %s", f.word, table, text)
		if n := seen[text]; n > 1 {
			name += fmt.Sprintf(" again %d", n)
		}
		r := rule(s.Scope, "rule", name, content)
		if label, ok := xtChain(e[target:next]); ok {
			r.Text = "chain " + label
		}
		s.Rules[name] = r
		at += next
	}
	return nil
}

// xtChain is the name of the chain whose head an entry with this target is.
func xtChain(target []byte) (string, bool) {
	// struct xt_entry_target: size, name of 29 bytes, revision; an ERROR target's text follows.
	const head = 32
	if len(target) < head || unix.ByteSliceToString(target[2:head-1]) != xtErrorTarget {
		return "", false
	}
	return unix.ByteSliceToString(target[head:]), true
}

// digest is enough of a SHA-256 to tell two contents apart.
func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return fmt.Sprintf("%x", sum[:8])
}
