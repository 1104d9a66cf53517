package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
)

// check runs a checker from the copy that came with the request, and says what the run stood on.
func (s *server) check(w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, err error) {
		answer(w, status, proto.CheckResponse{ExecuteResponse: proto.ExecuteResponse{Status: proto.StatusError, Message: err.Error()}})
	}
	if err := s.failed(); err != nil {
		refuse(http.StatusServiceUnavailable, err)
		return
	}
	var q proto.CheckRequest
	if err := decode(w, r, &q); err != nil {
		refuse(http.StatusBadRequest, err)
		return
	}
	if err := validCheck(q); err != nil {
		refuse(http.StatusBadRequest, err)
		return
	}
	a, status, err := s.runChecker(r, q)
	if err != nil {
		refuse(status, err)
		return
	}
	answer(w, status, a)
}

func validCheck(q proto.CheckRequest) error {
	if len(q.Exec) == 0 || q.Exec[0] == "" {
		return errors.New("exec is empty")
	}
	if (q.Name == "") != (len(q.Program) == 0) {
		return errors.New("name and program stand together")
	}
	if q.Name != "" && (q.Name != filepath.Base(q.Name) || !filepath.IsLocal(q.Name)) {
		return fmt.Errorf("name %q is not that of a file", q.Name)
	}
	if len(q.Program) > proto.MaxProgram {
		return fmt.Errorf("program has %d bytes, at most %d are taken", len(q.Program), proto.MaxProgram)
	}
	for _, p := range q.Paths {
		if !filepath.IsAbs(p) {
			return fmt.Errorf("path %q is not absolute", p)
		}
	}
	return nil
}

// runChecker puts the copy in place, reads what the run will stand on, runs, reads
// again, and takes the copy away.
func (s *server) runChecker(r *http.Request, q proto.CheckRequest) (a proto.CheckResponse, status int, err error) {
	timeout, err := seconds(&q.Timeout, 0)
	if err != nil {
		return a, http.StatusBadRequest, err
	}
	folder := ""
	argv := slices.Clone(q.Exec)
	var copied marks
	if q.Name != "" {
		var path string
		if folder, path, err = putProgram(q.Name, q.Program); err != nil {
			return a, http.StatusInternalServerError, err
		}
		// Before the answer, so that who reads it may rely on it.
		defer func() {
			rerr := os.RemoveAll(folder)
			if _, serr := os.Lstat(folder); !errors.Is(serr, os.ErrNotExist) {
				rerr = errors.Join(rerr, fmt.Errorf("%s is still there: %v", folder, serr))
			}
			if rerr != nil {
				err, status = errors.Join(err, fmt.Errorf("take the checker away: %w", rerr)), http.StatusInternalServerError
			}
		}()
		if copied, err = marksOf(folder, path); err != nil {
			return a, http.StatusInternalServerError, err
		}
		for i, word := range argv {
			argv[i] = strings.ReplaceAll(word, proto.ProgramPlace, path)
		}
	}
	now, err := newSelf()
	if err != nil {
		return a, http.StatusInternalServerError, err
	}
	a.Server = now.sha256
	resolved, before, err := s.who.closureOf(r.Context(), argv, q.Paths)
	if err != nil {
		return a, http.StatusInternalServerError, fmt.Errorf("read what the checker stands on: %w", err)
	}
	a.Before, a.Resolved = before.list(folder), inPlace(resolved, folder)
	if resolved == "" {
		a.Status, a.Message = proto.StatusError, fmt.Sprintf("%s: no such program", q.Exec[0])
		return a, http.StatusOK, nil
	}
	// What was looked at is what runs, whatever PATH leads to by now; its own name stays its own.
	o, err := s.run(r, job{argv: argv, path: resolved, timeout: timeout})
	if err != nil {
		return a, http.StatusInternalServerError, err
	}
	_, after, err := s.who.closureOf(r.Context(), argv, q.Paths)
	if err != nil {
		return a, http.StatusInternalServerError, fmt.Errorf("read what the checker stood on: %w", err)
	}
	if err := copied.same(); err != nil {
		return a, http.StatusInternalServerError, err
	}
	if list := after.list(folder); !slices.Equal(list, a.Before) {
		a.After = list
	}
	a.ExecuteResponse, status = o.response(argv, timeout)
	return a, status, nil
}

// putProgram makes a folder that did not exist, with the copy in it. Both are
// root's and nobody may write to them: the checker's user reads and runs the copy,
// and another process of that user cannot put one of its own in its place.
func putProgram(name string, program []byte) (folder, path string, err error) {
	var b [16]byte
	rand.Read(b[:]) // never fails, see crypto/rand
	folder = "/.drums-" + hex.EncodeToString(b[:])
	if err := os.Mkdir(folder, 0o700); err != nil { // EEXIST where somebody was there before
		return "", "", err
	}
	path = filepath.Join(folder, name)
	err = os.WriteFile(path, program, 0o500)
	for _, p := range []string{path, folder} {
		if err == nil {
			err = os.Chmod(p, 0o555) // whatever the umask is
		}
	}
	if err != nil {
		return "", "", errors.Join(err, os.RemoveAll(folder))
	}
	return folder, path, nil
}

// marks are what of a path changes whenever it is written, renamed, replaced or
// given other rights, also where all is put back afterwards.
type marks map[string]mark

type mark struct {
	dev, ino uint64
	changed  syscall.Timespec
}

func marksOf(paths ...string) (marks, error) {
	m := marks{}
	for _, p := range paths {
		info, err := os.Lstat(p)
		if err != nil {
			return nil, err
		}
		st := info.Sys().(*syscall.Stat_t)
		m[p] = mark{uint64(st.Dev), st.Ino, st.Ctim}
	}
	return m, nil
}

// errCopyChanged: the checker that ran may not be the one that was sent.
var errCopyChanged = errors.New("the checker's copy was changed while it ran")

func (m marks) same() error {
	now, err := marksOf(slices.Collect(maps.Keys(m))...)
	if err != nil {
		return fmt.Errorf("%w: %w", errCopyChanged, err)
	}
	if !maps.Equal(m, now) {
		return errCopyChanged
	}
	return nil
}
