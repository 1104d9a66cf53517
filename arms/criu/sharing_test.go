package criu

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
)

// hostPids are the pids of a tree by their number inside.
func hostPids(t *testing.T, root int) map[int]int {
	t.Helper()
	found := map[int]int{}
	for _, pid := range append([]int{root}, descendants(root)...) {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		_, line, _ := strings.Cut(string(status), "NSpid:")
		line, _, _ = strings.Cut(line, "\n")
		fields := strings.Fields(line)
		inner := 0
		if _, err := fmt.Sscan(fields[len(fields)-1], &inner); err != nil {
			t.Fatal(err)
		}
		found[inner] = pid
	}
	return found
}

// privateDirty is that of the mapping at an address, in bytes.
func privateDirty(t *testing.T, pid int, at uint64) int {
	t.Helper()
	smaps, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut("\n"+string(smaps), fmt.Sprintf("\n%x-", at))
	_, rest, dirty := strings.Cut(rest, "Private_Dirty:")
	kb := 0
	if _, err := fmt.Sscan(rest, &kb); err != nil || !found || !dirty {
		t.Fatalf("no mapping at %x: %v", at, err)
	}
	return kb << 10
}

// samePages compares each page of the images with the memory of a tree that stands still.
func samePages(t *testing.T, dir string, root int) (compared int) {
	t.Helper()
	all, err := OpenImages(dir).Memory()
	if err != nil {
		t.Fatal(err)
	}
	pids := hostPids(t, root)
	for _, m := range all {
		pages, err := os.ReadFile(filepath.Join(dir, m.File))
		if err != nil {
			t.Fatal(err)
		}
		mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pids[m.Pid]))
		if err != nil {
			t.Fatal(err)
		}
		defer mem.Close()
		for _, run := range m.Runs {
			have := make([]byte, run.End-run.Start)
			if _, err := mem.ReadAt(have, int64(run.Start)); err != nil {
				t.Errorf("task %d at %#x: %v", m.Pid, run.Start, err)
				continue
			}
			for at := uint64(0); at < uint64(len(have)); at += PageSize {
				if !bytes.Equal(have[at:at+PageSize], pages[uint64(run.Offset)+at:][:PageSize]) {
					t.Errorf("task %d: page %#x is not the image's", m.Pid, run.Start+at)
				}
				compared++
			}
		}
	}
	return compared
}

// Without the correction a restored child holds each page of a file that its parent has open a second time; with
// it, those alone that it wrote itself. Every page is the image's either way.
func TestKeepSharing(t *testing.T) {
	s := startSlot(t, "shared")
	text, err := os.ReadFile(filepath.Join(s.upper, "sharing"))
	if err != nil {
		t.Fatal(err)
	}
	var child int
	var at uint64
	if _, err := fmt.Sscanf(string(text), "%d %x", &child, &at); err != nil {
		t.Fatal(err)
	}
	// The child's last 64 pages are read-only since, and so a mapping of their own.
	const size, own = 512 * 4096, 8 * 4096
	dirtyOf := func(pid int) int { return privateDirty(t, pid, at) + privateDirty(t, pid, at+448*4096) }
	if dirty := dirtyOf(hostPids(t, s.pid)[child]); dirty != own {
		t.Fatalf("the child's private dirty memory of the file is %d bytes before the dump, not %d", dirty, own)
	}
	o, err := s.dump(DumpOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	restored := func(name string) (dirty int) {
		r, err := s.restore(t.Context(), name, RestoreOptions{Sibling: true, LeaveStopped: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer r.end()
		if n := samePages(t, o.ImagesDir, r.pid); n < 2*512 {
			t.Errorf("%s: only %d pages were compared", name, n)
		}
		return dirtyOf(hostPids(t, r.pid)[child])
	}
	if dirty := restored("as-dumped"); dirty != size {
		t.Errorf("as dumped, %d bytes of the child's mapping are its own, not all %d: docs/criu-findings.md says otherwise", dirty, size)
	}
	done, err := KeepSharing(o.ImagesDir)
	if err != nil || done.Renamed == 0 || done.Cut == 0 || done.Bytes < size {
		t.Fatalf("%+v, %v", done, err)
	}
	if dirty := restored("corrected"); dirty != own {
		t.Errorf("corrected, %d bytes of the child's mapping are its own, not %d", dirty, own)
	}
	if again, err := KeepSharing(o.ImagesDir); err != nil || again != (Sharing{}) {
		t.Errorf("a second correction: %+v, %v", again, err)
	}
}

// CRIU 4.3's mark goes from private mappings of files and stays on anonymous ones, whose reservations it keeps out of the accounts.
func TestKeepSharingTakesTheMarkAway(t *testing.T) {
	s := startSlot(t, "shared")
	o, err := s.dump(DumpOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	f, err := OpenImages(o.ImagesDir).files()
	if err != nil {
		t.Fatal(err)
	}
	marked := map[bool]int{}
	for pid, maps := range f.maps {
		for _, v := range maps.GetVmas() {
			v.Status = proto.Uint32(v.GetStatus() | vmaNotAccountable)
			marked[v.GetStatus()&vmaFilePrivate != 0]++
		}
		if err := writeMaps(o.ImagesDir, pid, maps); err != nil {
			t.Fatal(err)
		}
	}
	done, err := KeepSharing(o.ImagesDir)
	if err != nil || done.Unmarked != marked[true] || marked[true] == 0 {
		t.Fatalf("%+v of %v, %v", done, marked, err)
	}
	if f, err = OpenImages(o.ImagesDir).files(); err != nil {
		t.Fatal(err)
	}
	for pid, maps := range f.maps {
		for _, v := range maps.GetVmas() {
			if private := v.GetStatus()&vmaFilePrivate != 0; private == (v.GetStatus()&vmaNotAccountable != 0) {
				t.Errorf("task %d at %#x: private mapping of a file %t, status %#x", pid, v.GetStart(), private, v.GetStatus())
			}
		}
	}
	// Damage is no image that can be corrected.
	name := filepath.Join(o.ImagesDir, "mm-1.img")
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint32(data[8:], 1<<30)
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := KeepSharing(o.ImagesDir); err == nil {
		t.Error("a damaged image was corrected")
	}
}

// Reservations are marked once, and the tree comes back with them: a Go program has some.
func TestUnreserve(t *testing.T) {
	s := startSlot(t)
	o, err := s.dump(DumpOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := Unreserve(o.ImagesDir); err != nil || n == 0 {
		t.Fatalf("%d, %v", n, err)
	}
	if n, err := Unreserve(o.ImagesDir); err != nil || n != 0 {
		t.Errorf("a second time: %d, %v", n, err)
	}
	r, err := s.restore(t.Context(), "marked", RestoreOptions{Sibling: true, LeaveStopped: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if samePages(t, o.ImagesDir, r.pid) == 0 {
		t.Error("nothing was compared")
	}
	smaps, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", r.pid))
	if err != nil || !strings.Contains(string(smaps), " nr ") {
		t.Errorf("no mapping is marked: %v", err)
	}
}
