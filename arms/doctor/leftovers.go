package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// mostListed bounds how many leftovers are named one by one.
const mostListed = 8

// leftovers are things that a ledger says are owned by a run whose engine is gone.
func leftovers(_ context.Context, h *Host) []bench.HostFinding {
	runs, err := h.Runs(h.State)
	if err != nil {
		return unread(Warn, "leftovers", err)
	}
	boot, err := h.read("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return unread(Warn, "leftovers", err)
	}
	var found []bench.HostFinding
	running := 0
	for _, r := range runs {
		switch {
		case r.Running:
			running++
		case r.Err != nil:
			found = append(found, one(Warn, "leftovers", fmt.Sprintf("the ledger of %s cannot be read, so what it left is not known: %v", r.Dir, r.Err), "drumsbench verify "+r.Dir+" names the lines")...)
		case len(r.Owned) > 0:
			when := ""
			if r.Owned[0].Boot != boot {
				when = ", of an earlier boot: only files and directories can be left"
			}
			found = append(found, one(Warn, "leftovers", fmt.Sprintf("%s still owns %s and has no engine%s", r.Dir, ownedText(r), when), "drumsbench sweep "+r.Dir)...)
		}
	}
	if len(found) == 0 {
		return fine("leftovers", "nothing of %d runs, %d of which are running", len(runs), running)
	}
	return listed("leftovers", found, "drumsbench sweep")
}

// ownedText counts what a run owns by kind.
func ownedText(r Run) string {
	kinds := map[string]int{}
	for _, o := range r.Owned {
		kinds[o.Kind]++
	}
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		parts = append(parts, fmt.Sprintf("%d %s", kinds[kind], kind))
	}
	return strings.Join(parts, ", ")
}

// listed keeps the first findings and counts the others.
func listed(subject string, found []bench.HostFinding, remedy string) []bench.HostFinding {
	if more := len(found) - mostListed; more > 0 {
		found = append(found[:mostListed], one(Warn, subject, fmt.Sprintf("and %d more", more), remedy)...)
	}
	return found
}

// Names that runs give to cgroups and to their folders in the state directory's work folder.
var (
	ourGroup  = regexp.MustCompile(`^drums-`)
	ourFolder = regexp.MustCompile(`^([0-9a-f]{12}|drums-.*)$`)
)

// strays are groups, mounts and folders with a name like ours that no ledger of
// the state directory knows: of a run that lies elsewhere or was deleted, or not
// of ours at all.
func strays(_ context.Context, h *Host) []bench.HostFinding {
	runs, err := h.Runs(h.State)
	if err != nil {
		return unread(Warn, "strays", err)
	}
	known := map[string]bool{}
	for _, r := range runs {
		for _, claimed := range r.Claimed {
			known[path.Clean(claimed)] = true
		}
	}
	unknown := map[string][]string{}
	for _, look := range []func() ([]string, error){h.groups, h.ourMounts, h.folders} {
		names, err := look()
		if err != nil {
			return unread(Warn, "strays", err)
		}
		for _, name := range names {
			if !known[name] {
				owner := ownerOf(name)
				unknown[owner] = append(unknown[owner], name)
			}
		}
	}
	var found []bench.HostFinding
	for _, owner := range slices.Sorted(maps.Keys(unknown)) {
		found = append(found, one(Warn, "strays", fmt.Sprintf("no ledger below %s knows %s: %s", h.State, owner, strings.Join(unknown[owner], ", ")),
			"a run elsewhere has it: let that end, or drumsbench sweep its directory; else take it away by hand once nothing uses it")...)
	}
	if found == nil {
		return fine("strays", "no group, mount or folder that no ledger knows")
	}
	return listed("strays", found, "take these away and look again")
}

var randomID = regexp.MustCompile(`(?:^|/|drums-)([0-9a-f]{12})(?:$|[/-])`)

// ownerOf is the run whose random claim a name holds, or else the name's last part.
func ownerOf(name string) string {
	if id := randomID.FindStringSubmatch(name); id != nil {
		return "run " + id[1]
	}
	return path.Base(name)
}

// groups are the cgroups below our own current ones that are named as ours are.
func (h *Host) groups() (names []string, err error) {
	g, err := h.hierarchies()
	if err != nil {
		return nil, err
	}
	dirs := map[string]bool{}
	if g.v2 != "" {
		dirs[g.v2] = true
	}
	for _, p := range g.v1 {
		dirs[p.dir] = true
	}
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		below, err := h.list(dir, ourGroup)
		if err != nil {
			return nil, err
		}
		names = append(names, below...)
	}
	return names, nil
}

// ourMounts are those below the state directory's work folder.
func (h *Host) ourMounts() (names []string, err error) {
	mounts, err := h.mounts()
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		if strings.HasPrefix(m.Mountpoint, path.Join(h.State, "work")+"/") {
			names = append(names, m.Mountpoint)
		}
	}
	return names, nil
}

// folders are the scratch directories of runs.
func (h *Host) folders() ([]string, error) { return h.list(path.Join(h.State, "work"), ourFolder) }

// list are the directories in a directory with such a name; none where it does not exist.
func (h *Host) list(dir string, name *regexp.Regexp) (paths []string, err error) {
	entries, err := fs.ReadDir(h.FS, strings.TrimPrefix(dir, "/"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() && name.MatchString(e.Name()) {
			paths = append(paths, path.Join(dir, e.Name()))
		}
	}
	return paths, nil
}
