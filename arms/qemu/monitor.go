package qemu

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/drumsbench/drumsbench/arms/qmp"
)

// monitor is the connection to a machine. It is there while a verb needs it and
// not between: QEMU serves one client, and the next may be another program's.
type monitor struct {
	mu    sync.Mutex
	users int
	qmp   *qmp.Monitor
}

// socket is a short path to the machine's socket, good while folder is open: a
// socket's path may have 108 bytes (unix(7)), the folder's may have more.
func (t *tenancy) socket() (path string, folder *os.File, err error) {
	folder, err = os.Open(t.dir)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), socketFile), folder, nil
}

// attach connects to the machine, or joins who is connected. Call detach as often.
func (t *tenancy) attach(ctx context.Context) error {
	t.mon.mu.Lock()
	defer t.mon.mu.Unlock()
	if t.mon.users == 0 {
		at, folder, err := t.socket()
		if err != nil {
			return err
		}
		defer folder.Close()
		if t.mon.qmp, err = qmp.Dial(ctx, at, qmp.Options{}); err != nil {
			return err
		}
	}
	t.mon.users++
	return nil
}

// detach lets the connection go with its last user.
func (t *tenancy) detach() {
	t.mon.mu.Lock()
	defer t.mon.mu.Unlock()
	if t.mon.users--; t.mon.users == 0 {
		t.mon.qmp.Disconnect() // whatever it says: the machine runs on, or has ended
	}
}

// execute runs a command for whoever is attached.
func (t *tenancy) execute(ctx context.Context, name string, args, out any) error {
	return t.mon.qmp.Execute(ctx, name, args, out)
}
