package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
)

// The requests that start programs, other than /execute.

// launchLog is where launched programs print, below proto.LogDir. No service has a name like it.
const launchLog = "_launched.log"

// begin starts a program that nobody waits for.
func (s *server) begin(argv []string) error {
	path, err := s.who.program(argv[0])
	if err != nil {
		return err
	}
	if err := os.MkdirAll(proto.LogDir, 0o755); err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	out, err := os.OpenFile(filepath.Join(proto.LogDir, launchLog), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, _, err := s.procs.start(path, argv, s.who.attributes(nil, null.Fd(), out.Fd(), out.Fd()), noMark); err != nil {
		return fmt.Errorf("start %s: %w", path, err)
	}
	return nil
}

func (s *server) launch(w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, err error) {
		answer(w, status, proto.ExecuteResponse{Status: proto.StatusError, Message: err.Error()})
	}
	if err := s.failed(); err != nil {
		refuse(http.StatusServiceUnavailable, err)
		return
	}
	var q proto.LaunchRequest
	if err := decode(w, r, &q); err != nil {
		refuse(http.StatusBadRequest, err)
		return
	}
	argv, said, err := s.who.words(q.Command, q.Shell)
	if err != nil {
		refuse(http.StatusBadRequest, err)
		return
	}
	if err := s.begin(argv); err != nil {
		refuse(http.StatusInternalServerError, err)
		return
	}
	text(w, http.StatusOK, said+" launched successfully")
}

// openFile opens a file or launches a program, and waits for its window.
func (s *server) openFile(w http.ResponseWriter, r *http.Request) {
	if err := s.failed(); err != nil {
		refuse(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	var q proto.OpenFileRequest
	if err := decode(w, r, &q); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	if q.Path == "" {
		text(w, http.StatusBadRequest, "Path not supplied!")
		return
	}
	limit, written, err := openTime(q.TimeoutSeconds)
	if err != nil {
		text(w, http.StatusBadRequest, "Invalid timeout_seconds: "+written)
		return
	}
	argv, name := []string{"xdg-open", s.who.expand(q.Path)}, filepath.Base(q.Path)
	if _, err := os.Stat(argv[1]); err != nil {
		if _, err := s.who.program(q.Path); err != nil {
			text(w, http.StatusNotFound, "Application/file not found: "+q.Path)
			return
		}
		argv, name = []string{q.Path}, q.Path
	}
	titles := []string{q.WindowName}
	if q.WindowName == "" {
		titles = []string{name}
		if stem := strings.TrimSuffix(name, filepath.Ext(name)); stem != "" && stem != name {
			titles = append(titles, stem)
		}
	}
	if s.screen == nil {
		refuse(w, http.StatusInternalServerError, errNoDisplay.Error())
		return
	}
	if err := s.begin(argv); err != nil {
		text(w, http.StatusInternalServerError, fmt.Sprintf("Failed to open %s. Error: %v", q.Path, err))
		return
	}
	fits := func(have window) bool {
		for _, t := range titles {
			if strings.Contains(have.Title, t) {
				return true
			}
		}
		return false
	}
	const period = 100 * time.Millisecond
	var last error
	for begin := time.Now(); time.Since(begin) < limit; {
		if last = s.screen.activate(fits); last == nil {
			text(w, http.StatusOK, "File opened and window activated successfully")
			return
		}
		select {
		case <-r.Context().Done():
			return // nobody is there to be told
		case <-time.After(period):
		}
	}
	why := ""
	if last != nil && !errors.Is(last, errNoWindow) {
		why = " " + last.Error()
	}
	text(w, http.StatusInternalServerError, fmt.Sprintf("Failed to find window for %q within %g seconds.%s", titles, limit.Seconds(), why))
}

// openTime is a time-out as the public server reads it: anything that is a number, also as text.
func openTime(asked json.RawMessage) (limit time.Duration, written string, err error) {
	if len(asked) == 0 {
		return proto.DefaultOpenTimeout, "", nil
	}
	if json.Unmarshal(asked, &written) != nil {
		written = string(asked)
	}
	n, err := strconv.ParseFloat(strings.TrimSpace(written), 64)
	if err != nil || !(n >= 0 && n <= proto.MaxExecuteTimeout.Seconds()) {
		return 0, written, errors.New("it is no number of seconds")
	}
	return time.Duration(n * float64(time.Second)), written, nil
}

// script writes a program's text to a file of its own, which only the guest's user reads.
func (s *server) script(name, content string, mode os.FileMode) (string, error) {
	path := filepath.Join("/tmp", name)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	err = errors.Join(f.Chown(int(s.who.uid), int(s.who.gid)), f.Chmod(mode))
	if err == nil {
		_, err = f.WriteString(content)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(path)
		return "", err
	}
	return path, nil
}

func (s *server) runPython(w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, message, kind string) {
		answer(w, status, proto.RunPythonResponse{Status: proto.StatusError, Message: message, Error: kind})
	}
	if err := s.failed(); err != nil {
		refuse(http.StatusServiceUnavailable, err.Error(), "")
		return
	}
	var q proto.RunPythonRequest
	if err := decode(w, r, &q); err != nil {
		refuse(http.StatusBadRequest, err.Error(), "")
		return
	}
	if q.Code == "" {
		refuse(http.StatusBadRequest, "Code not supplied!", "")
		return
	}
	path, err := s.script("python_exec_"+rand.Text()+".py", q.Code, 0o600)
	if err != nil {
		refuse(http.StatusInternalServerError, "Execution error: "+err.Error(), err.Error())
		return
	}
	defer os.Remove(path)
	o, err := s.run(r, job{argv: []string{"python3", path}, timeout: proto.RunPythonTimeout})
	switch {
	case err != nil:
		refuse(http.StatusInternalServerError, "Execution error: "+err.Error(), err.Error())
		return
	case o.timedOut:
		refuse(http.StatusInternalServerError, "Execution timeout: Code took too long to execute", "TimeoutExpired")
		return
	}
	a := proto.RunPythonResponse{Status: proto.StatusSuccess, ReturnCode: new(o.code())}
	out, _ := o.stdout.text()
	a.Error, _ = o.stderr.text()
	if o.code() != 0 {
		a.Status = proto.StatusError
		if a.Error == "" {
			a.Error = fmt.Sprintf("Process exited with code %d", o.code())
		}
	}
	a.Output = &out
	a.Message = joined(out, a.Error)
	answer(w, http.StatusOK, a)
}

func joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "\n" + b
}

func (s *server) runBash(w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, text string) {
		answer(w, status, proto.RunBashResponse{Status: proto.StatusError, Output: text, Returncode: -1})
	}
	if err := s.failed(); err != nil {
		refuse(http.StatusServiceUnavailable, err.Error())
		return
	}
	var q proto.RunBashRequest
	if err := decode(w, r, &q); err != nil {
		refuse(http.StatusBadRequest, err.Error())
		return
	}
	if q.Script == "" {
		refuse(http.StatusBadRequest, "Script not supplied!")
		return
	}
	limit, err := seconds(q.Timeout, proto.DefaultBashTimeout)
	if err != nil {
		refuse(http.StatusBadRequest, err.Error())
		return
	}
	dir := ""
	if q.WorkingDir != nil && *q.WorkingDir != "" {
		dir = s.who.expandHome(*q.WorkingDir)
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(s.who.dir(), dir)
		}
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			refuse(http.StatusBadRequest, "Working directory does not exist: "+dir)
			return
		}
	}
	const shebang = "#!/bin/bash"
	if !strings.Contains(q.Script, shebang) {
		q.Script = shebang + "\n\n" + q.Script
	}
	path, err := s.script("tmp"+rand.Text()+".sh", q.Script, 0o700)
	if err != nil {
		refuse(http.StatusInternalServerError, "Failed to execute script: "+err.Error())
		return
	}
	defer os.Remove(path)
	shell := "/bin/bash"
	if _, err := s.who.program(shell); err != nil {
		shell = "/bin/sh"
	}
	o, err := s.run(r, job{argv: []string{shell, path}, dir: dir, timeout: limit, merged: true})
	switch {
	case err != nil:
		refuse(http.StatusInternalServerError, "Failed to execute script: "+err.Error())
		return
	case o.timedOut:
		refuse(http.StatusInternalServerError, fmt.Sprintf("Script execution timed out after %g seconds", limit.Seconds()))
		return
	}
	a := proto.RunBashResponse{Status: proto.StatusSuccess, Returncode: o.code()}
	a.Output, _ = o.stdout.text()
	if a.Returncode != 0 {
		a.Status = proto.StatusError
	}
	answer(w, http.StatusOK, a)
}
