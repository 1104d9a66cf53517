package criu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// WaitStopped waits until every thread of a tree is stopped (state T) or dead.
//
// CRIU answers a restore with leave-stopped when it has detached from tasks that
// have a SIGSTOP pending: each stops on its way out of the kernel, without an
// instruction of its own (kernel/signal.c: ptrace_stop recomputes the pending
// signals, get_signal takes the SIGSTOP and stops the group under one lock), but
// on a busy host that way takes a while, and until then it shows as running.
func WaitStopped(ctx context.Context, root int) error {
	for {
		tid, state, err := notStopped(root)
		if err != nil || tid == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("task %d is in state %c, not stopped: %w", tid, state, over(ctx))
		case <-time.After(200 * time.Microsecond):
		}
	}
}

// notStopped is a thread of the tree that is neither stopped nor dead; 0 for none.
func notStopped(root int) (tid int, state byte, err error) {
	seen := false
	for _, pid := range append([]int{root}, descendants(root)...) {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil {
			return 0, 0, err
		}
		for _, name := range threads {
			data, err := os.ReadFile(name)
			if err != nil {
				if isAbsent(err) || errors.Is(err, unix.ESRCH) {
					continue
				}
				return 0, 0, err
			}
			at := bytes.LastIndexByte(data, ')') + 2 // pid (comm) state
			if at < 2 || at >= len(data) {
				return 0, 0, fmt.Errorf("%s holds no state", name)
			}
			switch state := data[at]; state {
			case 'T':
				seen = true
			case 'Z', 'X':
			default:
				if _, err := fmt.Sscan(filepath.Base(filepath.Dir(name)), &tid); err != nil {
					return 0, 0, err
				}
				return tid, state, nil
			}
		}
	}
	if !seen {
		return 0, 0, fmt.Errorf("tree of %d has no living task", root)
	}
	return 0, 0, nil
}

// endTree kills a restored root task, and with its pid namespace the tree, and reaps it where it is a child of ours.
func endTree(root int) error {
	f := &family{}
	defer f.release()
	f.hold(root)
	f.retire()
	return f.settleHeld(time.Now().Add(reapTime))
}
