package steps

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

const (
	digestA = bench.SHA256("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
	digestB = bench.SHA256("bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb")
)

// What the task may change hides no new way to it: code in such a file that a new
// link leads to is seen, what an old link leads to may change.
func TestCheckMayChangeHidesNoLink(t *testing.T) {
	e := evaluation{p: bench.EvaluateParams{Checker: bench.Checker{MayChange: []bench.GuestPath{"/root/notes.txt"}}}}
	note := guest.ClosureEntry{Path: "/root/notes.txt", Kind: proto.EntryFile, Mode: "0644", Sha256: digestA}
	link := func(at string, sum bench.SHA256) guest.ClosureEntry {
		return guest.ClosureEntry{Path: at, Real: "/root/notes.txt", Kind: proto.EntryFile, Mode: "0644", Sha256: sum}
	}
	before := e.lines(guest.Checked{}, []guest.ClosureEntry{note, link("/opt/notes", digestA)})
	note.Sha256 = digestB
	now := e.lines(guest.Checked{}, []guest.ClosureEntry{note, link("/opt/notes", digestB)})
	if found := closureChanges(before, now, sinceAct); len(found) > 0 {
		t.Errorf("what may change did: %+v", found)
	}
	const planted = "/usr/lib/python3/dist-packages/x.pth"
	now = e.lines(guest.Checked{}, []guest.ClosureEntry{note, link("/opt/notes", digestB), link(planted, digestB)})
	if found := closureChanges(before, now, sinceAct); len(found) != 1 || found[0].Subject != planted {
		t.Errorf("a new link to it: %+v", found)
	}
	other := link("/opt/notes", digestB)
	other.Real = "/root/other"
	now = e.lines(guest.Checked{}, []guest.ClosureEntry{note, other})
	if found := closureChanges(before, now, sinceAct); len(found) != 1 || found[0].Subject != "/opt/notes" {
		t.Errorf("the link leads elsewhere: %+v", found)
	}
}

// What the host sees of a path and of the folders above it says more than a guest server that lies.
func TestCheckHostSees(t *testing.T) {
	type entries = []bench.StateEntry
	is := func(path, kind string, sum bench.SHA256) bench.StateEntry {
		return bench.StateEntry{Path: path, Type: kind, Sha256: sum}
	}
	link := func(path, target string) bench.StateEntry {
		return bench.StateEntry{Path: path, Type: "symlink", Target: target}
	}
	opaque := func(path string) bench.StateEntry {
		return bench.StateEntry{Path: path, Type: "directory", Opaque: true}
	}
	file := guest.ClosureEntry{Path: "/opt/app/bin/tool", Kind: proto.EntryFile, Sha256: digestA}
	by := guest.ClosureEntry{Path: "/opt/bin/tool", Real: file.Path, Kind: proto.EntryFile, Sha256: digestA}
	folder := guest.ClosureEntry{Path: file.Path, Kind: proto.EntryDirectory}
	device := guest.ClosureEntry{Path: file.Path, Kind: proto.EntryOther}
	absent := guest.ClosureEntry{Path: file.Path, Kind: proto.EntryAbsent}
	for _, c := range []struct {
		name     string
		state    entries
		entry    guest.ClosureEntry
		agrees   bool
		compared int
	}{
		{"nothing differs", nil, file, true, 0},
		{"a folder's mode differs", entries{is("/opt/app", "directory", "")}, file, true, 0},
		{"the same file", entries{is(file.Path, "file", digestA)}, file, true, 1},
		{"another file", entries{is(file.Path, "file", digestB)}, file, false, 1},
		{"it is gone", entries{is(file.Path, "whiteout", "")}, file, false, 1},
		{"it is a link", entries{link(file.Path, "/tmp/fake")}, file, false, 1},
		{"it is a pipe", entries{is(file.Path, "fifo", "")}, file, false, 1},
		{"a pipe for nothing", entries{is(file.Path, "fifo", "")}, absent, false, 1},
		{"a pipe for a folder", entries{is(file.Path, "fifo", "")}, folder, false, 1},
		{"a pipe as said", entries{is(file.Path, "fifo", "")}, device, true, 1},
		{"a file for nothing", entries{is(file.Path, "file", digestA)}, absent, false, 1},
		{"a link to a file for nothing", entries{link(file.Path, "../x"), is("/opt/app/x", "file", digestB)}, absent, false, 1},
		{"a link to nothing", entries{link(file.Path, "../x")}, absent, true, 1},
		{"a link to itself", entries{link(file.Path, "tool")}, absent, true, 1},
		{"a link to itself for a file", entries{link(file.Path, "tool")}, file, false, 1},
		{"its folder is gone", entries{is("/opt/app", "whiteout", "")}, file, false, 1},
		{"its folder is gone, as said", entries{is("/opt/app", "whiteout", "")}, absent, true, 1},
		{"its folder is a file", entries{is("/opt/app", "file", digestA)}, file, false, 1},
		{"its folder is a link", entries{link("/opt/app", "/root/app")}, file, false, 1},
		{"its folder is a link to where it is", entries{link("/opt/app", "/root/app"), is("/root/app/bin/tool", "file", digestA)}, absent, false, 1},
		{"its folder is another one", entries{opaque("/opt/app"), is("/opt/app/bin", "directory", "")}, file, false, 1},
		{"its folder is another one with it", entries{opaque("/opt/app"), is("/opt/app/bin", "directory", ""), is(file.Path, "file", digestA)}, file, true, 1},
		{"by a link of the image", entries{is(file.Path, "file", digestA)}, by, true, 1},
		{"by a link of the image to another file", entries{is(file.Path, "file", digestB)}, by, false, 1},
		{"by a new link", entries{link(by.Path, "../app/bin/tool"), is(file.Path, "file", digestA)}, by, true, 1},
		{"the link leads elsewhere", entries{link(by.Path, "/root/fake"), is("/root/fake", "file", digestA)}, by, false, 1},
		{"the link leads to what is excluded", entries{link(by.Path, "/tmp/fake")}, by, false, 1},
		{"the link is a file", entries{is(by.Path, "file", digestA)}, by, false, 1},
		{"the folder of the link is another one", entries{opaque("/opt/bin")}, by, false, 1},
		{"the checker's copy", entries{is("/root", "whiteout", "")}, guest.ClosureEntry{Path: guest.ProgramPlace + "/x", Kind: proto.EntryFile, Sha256: digestA}, true, 0},
	} {
		found, compared := newSeen(bench.StateManifest{Entries: c.state, Exclude: []string{"/tmp"}}).disagree([]guest.ClosureEntry{c.entry})
		if (len(found) == 0) != c.agrees || compared != c.compared {
			t.Errorf("%s: %+v, %d compared", c.name, found, compared)
		}
		for _, f := range found {
			if f.Verdict != engine.Fail || f.Subject != c.entry.Path || f.Want == f.Have {
				t.Errorf("%s: %+v", c.name, f)
			}
		}
	}
	// However much was replaced, the findings can be read.
	var many []guest.ClosureEntry
	for i := range 3 * mostChanges {
		many = append(many, guest.ClosureEntry{Path: fmt.Sprintf("/opt/app/%d", i), Kind: proto.EntryFile, Sha256: digestA})
	}
	if found, _ := newSeen(bench.StateManifest{Entries: entries{is("/opt", "whiteout", "")}}).disagree(many); len(found) != mostChanges+1 {
		t.Errorf("%d findings", len(found))
	}
}

// sightless is a slot whose state is not known.
type sightless struct {
	engine.Slot
	view bench.View
}

func (s sightless) Observe(context.Context, ...engine.Aspect) (o engine.Observation) {
	o.State = engine.Unknown[bench.StateManifest]("permission denied", s.view)
	return o
}

// Where the host should see the slot's files and does not there is no score; an arm
// that sees them through the guest alone says so and goes on.
func TestCheckHostIsBlind(t *testing.T) {
	for view, scored := range map[bench.View]bool{engine.ViewHost: false, engine.ViewGuest: true, "": false} {
		e := evaluation{x: &engine.Exec{}}
		found, err := e.host(t.Context(), sightless{view: view}, guest.Checked{})
		if len(found) > 0 || (err == nil) != scored || err != nil && !errors.Is(err, engine.ErrUnknown) {
			t.Errorf("view %q: %+v, %v", view, found, err)
		}
	}
}
