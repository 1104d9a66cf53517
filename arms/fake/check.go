package fake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
)

// searchPath is where the fake guest looks for programs, as a real one's PATH.
var searchPath = []string{"/usr/local/bin", "/usr/bin"}

// builtins are the programs that every fake image has in /usr/bin.
var builtins = []string{"append", "canary", "cat", "cp", "echo", "exit", "false", "head", "kill-server", "mkdir", "mv", "recall", "remember", "rm", "sh", "signal",
	"sleep", "test", "touch", "true", "write"}

// builtin is what the file of a built-in program holds. A file with anything else
// in its place is a text that sh runs.
func builtin(name string) []byte { return []byte("the program " + name + " of the fake arm\n") }

// program finds a program as a shell would.
func (w *world) program(name string) (at string, f file, ok bool) {
	if strings.Contains(name, "/") {
		at = w.path(name)
		f, ok = w.files[at]
		if below, was := strings.CutPrefix(at, "/bin/"); !ok && was { // /bin is a link to /usr/bin
			at = "/usr/bin/" + below
			f, ok = w.files[at]
		}
		return at, f, ok && !f.Directory
	}
	for _, dir := range searchPath {
		if f, ok := w.files[path.Join(dir, name)]; ok && !f.Directory {
			return path.Join(dir, name), f, true
		}
	}
	return "", file{}, false
}

// closure is what a command stands on: the loader's files, the guest server, the
// paths that were asked for, the program, and the programs that sh's text names.
func (w *world) closure(argv, paths []string) (resolved string, list []proto.ClosureEntry) {
	entries := map[string]proto.ClosureEntry{}
	add := func(p string, named bool) {
		if e, seen := entries[p]; seen && !e.Named {
			return
		}
		e := proto.ClosureEntry{Path: p, Kind: proto.EntryAbsent, Named: named}
		if f, ok := w.files[p]; ok {
			e.Mode = fmt.Sprintf("%04o", f.Mode)
			if e.Kind = proto.EntryDirectory; !f.Directory {
				e.Kind, e.Sha256 = proto.EntryFile, digest(f.Data)
			}
		}
		entries[p] = e
	}
	for _, p := range append([]string{"/etc/ld.so.preload", "/etc/ld.so.cache", serverPath}, paths...) {
		add(path.Clean(p), false)
		for _, below := range w.below(path.Clean(p)) {
			add(below, false)
		}
	}
	at, f, ok := w.program(argv[0])
	if ok {
		resolved = at
		add(at, false)
		text := ""
		switch {
		case string(f.Data) != string(builtin(path.Base(at))):
			text = string(f.Data)
		case path.Base(at) == "sh" && len(argv) == 3:
			text = argv[2]
		}
		for _, word := range strings.Fields(text) {
			if named, _, ok := w.program(word); ok && strings.HasPrefix(named, "/usr/") {
				add(named, true)
			}
		}
	}
	for _, p := range slices.Sorted(maps.Keys(entries)) {
		list = append(list, entries[p])
	}
	return resolved, list
}

func (s *server) check(w http.ResponseWriter, r *http.Request) {
	t := s.tenancy
	refuse := func(status int, message string) {
		answer(w, status, proto.CheckResponse{ExecuteResponse: proto.ExecuteResponse{Status: proto.StatusError, Message: message}})
	}
	var q proto.CheckRequest
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil || len(q.Exec) == 0 {
		refuse(http.StatusBadRequest, fmt.Sprintf("no check: %v", err))
		return
	}
	if t.fault("closure-unknown") {
		refuse(http.StatusInternalServerError, "read what the checker stands on: input/output error")
		return
	}
	folder := "/.drums-" + newToken()
	if t.fault("draw-repeats") {
		folder = "/.drums-" + string(digest(nil))
	}
	phase, reason := proto.PhaseRunning, ""
	a := proto.CheckResponse{}
	look := func(in *world) []proto.ClosureEntry {
		var list []proto.ClosureEntry
		a.Resolved, list = in.closure(q.Exec, q.Paths)
		if t.fault("checker-swapped-unseen") { // the guest server says that all is as in the image
			for i, e := range list {
				if f, ok := image()[e.Path]; ok && !f.Directory {
					list[i].Sha256 = digest(f.Data)
				}
			}
		}
		for i, e := range list {
			if below, ok := strings.CutPrefix(e.Path, folder); ok {
				list[i].Path = proto.ProgramPlace + below
			}
		}
		slices.SortFunc(list, func(a, b proto.ClosureEntry) int { return strings.Compare(a.Path, b.Path) })
		return list
	}
	s.with(func(in *world) {
		phase, reason = in.phase()
		a.Server = in.Server
		if q.Name != "" {
			in.files[folder] = file{Directory: true, Mode: 0o700}
			in.files[path.Join(folder, q.Name)] = file{Mode: 0o500, Data: q.Program}
			for i, word := range q.Exec {
				q.Exec[i] = strings.ReplaceAll(word, proto.ProgramPlace, path.Join(folder, q.Name))
			}
		}
		a.Before = look(in)
	})
	defer func() {
		s.tenancy.mu.Lock()
		defer s.tenancy.mu.Unlock()
		if in := s.tenancy.world; in != nil {
			in.remove(folder, true, true)
		}
	}()
	switch {
	case phase == proto.PhaseFailed:
		refuse(http.StatusServiceUnavailable, reason)
		return
	case a.Resolved == "":
		a.Status, a.Message = proto.StatusError, q.Exec[0]+": no such program"
		answer(w, http.StatusOK, a)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(q.Timeout*float64(time.Second)))
	defer cancel()
	p := program{server: s, ctx: ctx}
	code, err := p.run(append([]string{a.Resolved}, q.Exec[1:]...))
	if errors.Is(err, errEnded) {
		panic(http.ErrAbortHandler)
	}
	s.with(func(in *world) {
		if after := look(in); !slices.Equal(after, a.Before) {
			a.After = after
		}
	})
	a.Resolved = strings.Replace(a.Resolved, folder, proto.ProgramPlace, 1)
	status := http.StatusOK
	a.ExecuteResponse, status = p.response(code, err)
	answer(w, status, a)
}
