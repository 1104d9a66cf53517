package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// exitTrailer comes after all that a script said. Without it the script's end is not known.
const exitTrailer = "Exit-Code"

// serve is the agent: it answers until ctx ends. Only the test that has booted
// the machine reaches it, and whoever reaches it is root.
func serve(ctx context.Context, address string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", address)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /alive", func(w http.ResponseWriter, _ *http.Request) {
		id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = w.Write(id)
	})
	mux.HandleFunc("POST /run", runScript)
	mux.HandleFunc("POST /put", putFile)
	mux.HandleFunc("GET /get", getFolder)
	s := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// flushing sends each write at once.
type flushing struct{ w http.ResponseWriter }

func (f flushing) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err == nil {
		err = http.NewResponseController(f.w).Flush()
	}
	return n, err
}

// runScript runs the body with bash. When the client goes, so does the script's process group.
func runScript(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	f, err := os.CreateTemp("", "hostvm-*.sh") // a script may be longer than an argument
	if err == nil {
		defer os.Remove(f.Name())
		_, err = f.Write(text)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Trailer", exitTrailer)
	cmd := exec.CommandContext(r.Context(), "/bin/bash", f.Name())
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8"}
	cmd.Dir = "/root"
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second // what the script left in the background may hold its output
	cmd.Stdout = flushing{w}
	cmd.Stderr = cmd.Stdout
	code := 0
	var exit *exec.ExitError
	switch err := cmd.Run(); {
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		code = exit.ExitCode()
	case errors.As(err, &exit):
		code = 128 + int(exit.Sys().(interface{ Signal() unix.Signal }).Signal())
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		return // no trailer
	}
	w.Header().Set(exitTrailer, strconv.Itoa(code))
}

// putFile replaces a file by the body, with a new inode: a program that runs keeps its own.
func putFile(w http.ResponseWriter, r *http.Request) {
	path := r.FormValue("path")
	mode, err := strconv.ParseUint(r.FormValue("mode"), 8, 12)
	if err != nil || !filepath.IsAbs(path) {
		http.Error(w, "path must be absolute and mode octal", http.StatusBadRequest)
		return
	}
	err = func() error {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r.Body)
		if err = errors.Join(err, f.Chmod(os.FileMode(mode)), f.Sync(), f.Close()); err != nil {
			return err
		}
		return os.Rename(path+".new", path)
	}()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// getFolder answers with a tar of a folder, with all that a checkpoint's seal covers.
func getFolder(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Trailer", exitTrailer)
	cmd := exec.CommandContext(r.Context(), "tar", "--numeric-owner", "--xattrs", "--xattrs-include=*", "-C", r.FormValue("path"), "-c", ".")
	cmd.Stdout = w
	if cmd.Run() == nil {
		w.Header().Set(exitTrailer, "0")
	}
}
