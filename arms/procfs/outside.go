package procfs

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/drumsbench/drumsbench/engine/observe"
)

// holder is a descriptor of a process outside the slot.
type holder struct{ pid, fd int }

func (h holder) link(dir string) string {
	return filepath.Join(root, strconv.Itoa(h.pid), dir, strconv.Itoa(h.fd))
}

// fileID is a file as stat names it.
type fileID struct{ dev, ino uint64 }

// outside is what the processes outside a slot hold.
type outside struct {
	// links are the holders of each descriptor link.
	links map[string][]holder
	// files are those of files with a path, read when first asked for.
	files map[fileID][]holder
	// events are those of eventfds, which share one inode, by their id.
	events map[string][]holder
}

// duplicates is held while this process holds copies of a slot's sockets, so that no scan takes it for an owner.
var duplicates sync.Mutex

func scanOutside(pids []int) (*outside, error) {
	duplicates.Lock()
	defer duplicates.Unlock()
	o := &outside{links: map[string][]holder{}}
	for _, pid := range pids {
		fds, err := numbers(filepath.Join(root, strconv.Itoa(pid), "fd"))
		if vanished(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list descriptors outside the slot: %w", err)
		}
		for _, fd := range fds {
			h := holder{pid, fd}
			link, err := os.Readlink(h.link("fd"))
			if vanished(err) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("list descriptors outside the slot: %w", err)
			}
			o.links[link] = append(o.links[link], h)
		}
	}
	return o, nil
}

// file returns who outside holds a file that has a path.
func (o *outside) file(id fileID) ([]holder, error) {
	if o.files == nil {
		files := map[fileID][]holder{}
		for link, hs := range o.links {
			if !strings.HasPrefix(link, "/") {
				continue
			}
			for _, h := range hs {
				st, err := statLink(h.link("fd"))
				if vanished(err) {
					continue
				}
				if err != nil {
					return nil, err
				}
				id := fileID{st.Dev, st.Ino}
				files[id] = append(files[id], h)
			}
		}
		o.files = files
	}
	return o.files[id], nil
}

// event returns who outside holds an eventfd.
func (o *outside) event(id string) ([]holder, error) {
	if o.events == nil {
		events := map[string][]holder{}
		for _, h := range o.links[linkEventfd] {
			info, err := h.info()
			if vanished(err) {
				continue
			}
			if err != nil {
				return nil, err
			}
			if id, ok := info.Fields[fieldEventfd]; ok {
				events[id] = append(events[id], h)
			}
		}
		o.events = events
	}
	return o.events[id], nil
}

func (h holder) info() (observe.FDInfo, error) {
	text, err := os.ReadFile(h.link("fdinfo"))
	if err != nil {
		return observe.FDInfo{}, err
	}
	return observe.ParseFDInfo(bytes.NewReader(text))
}
