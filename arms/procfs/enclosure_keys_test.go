package procfs_test

import (
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/arms/procfs/slottest"
)

// Memory with a protection key is a finding: a restore would lose the key.
func TestEnclosureFindsKeys(t *testing.T) {
	s := slottest.Start(t)
	a := s.Spawn("a")
	if a.Call("key") == "none" { // a processor without keys: the text below is all there is to read
		expectNone(t, enclosure(t, s, repair))
		return
	}
	found := enclosure(t, s, repair)
	if len(found) != 1 || !strings.Contains(found[0].Text, "1 mappings have a protection key") || !strings.Contains(found[0].Hint, "pkey_alloc") {
		t.Errorf("%+v", found)
	}
}
