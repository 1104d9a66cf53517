package procfs

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const hintKeys = "the slot's seccomp profile lets pkey_alloc through: have it answer ENOSPC, as a processor without keys does"

// checkKeys finds memory with a protection key (pkeys(7)). CRIU's images have no place for keys: a restored task has
// allocated none, its memory carries none, and the next pkey_mprotect fails, on which V8 ends its process at once.
// A key that no mapping carries is not seen. Memory that is only executed has a key of the kernel's own, which it
// gives again.
func (e *enclosure) checkKeys() error {
	for _, t := range e.tasks {
		f, err := os.Open(filepath.Join(root, strconv.Itoa(t.Pid), "smaps"))
		if vanished(err) {
			continue
		}
		if err != nil {
			return err
		}
		keyed, err := parseKeys(f)
		f.Close()
		if vanished(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read mappings of pid %d: %w", t.Pid, err)
		}
		if len(keyed) > 0 {
			e.add(t.subject(), fmt.Sprintf("%d mappings have a protection key, the first at %s, and CRIU brings no key back", len(keyed), keyed[0]), hintKeys)
		}
	}
	return nil
}

// parseKeys lists the mappings of /proc/PID/smaps that have a protection key of the program's, as FROM-TO.
func parseKeys(r io.Reader) (keyed []string, err error) {
	var span, perms string
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		name, rest, _ := strings.Cut(s.Text(), " ")
		switch {
		case !strings.HasSuffix(name, ":"): // of the others each has a name with a colon
			span = name
			perms, _, _ = strings.Cut(rest, " ")
		case name == "ProtectionKey:" && strings.TrimSpace(rest) != "0" && !strings.HasPrefix(perms, "--x"):
			keyed = append(keyed, span)
		}
	}
	return keyed, s.Err()
}
