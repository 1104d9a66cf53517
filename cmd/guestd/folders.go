package main

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// parseForm reads a form in either of the ways that clients send one.
func parseForm(r *http.Request) error {
	if t, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); t == "multipart/form-data" {
		return r.ParseMultipartForm(requestLimit)
	}
	return r.ParseForm()
}

func (s *server) desktopPath(w http.ResponseWriter, _ *http.Request) {
	path := filepath.Join(s.who.home, "Desktop")
	if _, err := os.Stat(path); err != nil {
		refuse(w, http.StatusNotFound, "Unsupported operating system or desktop path not found")
		return
	}
	answer(w, http.StatusOK, struct {
		Path string `json:"desktop_path"`
	}{path})
}

// Bounds of a listing. A folder may be a link to one above it.
const (
	maxEntries = 20_000
	maxDepth   = 40 // as many links as the kernel follows
)

var errEntries = fmt.Errorf("there are more than %d files, or folders in more than %d folders", maxEntries, maxDepth)

func (s *server) listDirectory(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Path *string `json:"path"`
	}
	if err := decode(w, r, &q); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	if q.Path == nil {
		refuse(w, http.StatusBadRequest, "Missing 'path' parameter")
		return
	}
	path := *q.Path
	if !filepath.IsAbs(path) {
		path = filepath.Join(s.who.dir(), path)
	}
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		refuse(w, http.StatusBadRequest, "The provided path is not a directory")
		return
	}
	l := lister{left: maxEntries}
	tree := l.list(path, (*q.Path)[strings.LastIndexByte(*q.Path, '/')+1:], maxDepth)
	if l.left < 0 {
		refuse(w, http.StatusInternalServerError, "list "+path+": "+errEntries.Error())
		return
	}
	answer(w, http.StatusOK, struct {
		Tree any `json:"directory_tree"`
	}{tree})
}

type (
	fileEntry struct {
		Type string `json:"type"`
		Name string `json:"name"`
	}
	folderEntry struct {
		fileEntry
		Children []any `json:"children"`
	}
	unreadEntry struct {
		Error string `json:"error"`
	}
)

// lister counts what it lists; below zero it is too much.
type lister struct{ left int }

func (l *lister) list(path, name string, depth int) any {
	out := folderEntry{fileEntry{"directory", name}, []any{}}
	if depth == 0 {
		l.left = -1
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return unread(err)
	}
	names, err := f.Readdirnames(maxEntries + 1)
	f.Close()
	if err != nil && !errors.Is(err, io.EOF) { // which is what an empty folder says
		return unread(err)
	}
	slices.Sort(names)
	for _, n := range names {
		if l.left--; l.left < 0 {
			return nil
		}
		at := filepath.Join(path, n)
		if info, err := os.Stat(at); err == nil && info.IsDir() {
			out.Children = append(out.Children, l.list(at, n, depth-1))
		} else {
			out.Children = append(out.Children, fileEntry{"file", n})
		}
	}
	return out
}

func unread(err error) any { return unreadEntry{err.Error()} }
