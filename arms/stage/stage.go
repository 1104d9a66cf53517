// Package stage starts a fresh copy of this program as a helper that prepares
// its own process (cgroups, namespaces, mounts) and then becomes another
// program by execve, in the same pid. Go cannot do that work between fork and
// exec, and the process that is prepared must be the one that runs on.
//
// Always holds: main and every TestMain call Main first, so that a helper never
// runs the program it is a copy of; a helper reports its failure through the
// status pipe and success is the pipe's end at execve.
package stage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	argv0  = "drums-stage"
	envKey = "DRUMS_STAGE"
	// statusFD is where a helper writes its failure; above what callers hand over.
	statusFD = 100
)

type request struct {
	Name   string
	Config json.RawMessage
}

var stages = map[string]func(config []byte) error{}

// Register binds a stage's name to its work, from an init function. run returns
// only on failure: it ends in execve.
func Register[C any](name string, run func(C) error) {
	if _, ok := stages[name]; ok {
		panic("stage registered twice: " + name)
	}
	stages[name] = func(b []byte) error {
		var c C
		if err := json.Unmarshal(b, &c); err != nil {
			return err
		}
		return run(c)
	}
}

// Main runs the stage and exits if this process is one; otherwise it returns at once.
func Main() {
	if len(os.Args) == 0 || os.Args[0] != argv0 {
		return
	}
	status := os.NewFile(statusFD, "status")
	unix.CloseOnExec(statusFD)
	err := runStage()
	// A caller that reads the helper's standard error instead gives no status pipe.
	if _, werr := fmt.Fprintln(status, err); werr != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(125)
}

func runStage() error {
	var r request
	text, ok := os.LookupEnv(envKey)
	if !ok {
		return errors.New("start stage: no configuration")
	}
	os.Clearenv()
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return fmt.Errorf("start stage: %w", err)
	}
	run, ok := stages[r.Name]
	if !ok {
		return fmt.Errorf("start stage: no stage named %q", r.Name)
	}
	if err := run(r.Config); err != nil {
		return fmt.Errorf("stage %s: %w", r.Name, err)
	}
	return fmt.Errorf("stage %s returned", r.Name)
}

// Command returns a command that runs the stage. The caller may set SysProcAttr
// and ExtraFiles (fd 3 and up, fewer than 96 of them) before Start.
func Command(name string, config any) (*exec.Cmd, error) {
	c, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	r, err := json.Marshal(request{Name: name, Config: c})
	if err != nil {
		return nil, err
	}
	return &exec.Cmd{Path: "/proc/self/exe", Args: []string{argv0}, Env: []string{envKey + "=" + string(r)}}, nil
}

// Status is the helper's end of the conversation.
type Status struct{ r, w *os.File }

// AddStatus gives cmd its status pipe; call it after the last ExtraFile was set.
func AddStatus(cmd *exec.Cmd) (*Status, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	for len(cmd.ExtraFiles) < statusFD-3 {
		cmd.ExtraFiles = append(cmd.ExtraFiles, nil) // nil leaves the descriptor closed
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, w)
	return &Status{r: r, w: w}, nil
}

// Wait returns nil once the helper has become its program, or the helper's own
// words when it failed. Call it after Start, or after a failed Start to close the pipe.
func (s *Status) Wait(ctx context.Context) error {
	s.w.Close()
	defer s.r.Close()
	stop := context.AfterFunc(ctx, func() { s.r.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	b, err := io.ReadAll(io.LimitReader(s.r, 64<<10))
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	}
	if len(b) > 0 {
		return errors.New(strings.TrimSpace(string(bytes.ToValidUTF8(b, []byte("?")))))
	}
	return nil
}

// CloseOnExec marks every descriptor from first on, so that nothing of ours reaches the next program.
func CloseOnExec(first uint) error {
	return unix.CloseRange(first, 1<<31-1, unix.CLOSE_RANGE_CLOEXEC)
}
