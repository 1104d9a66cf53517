// Package systemd asks the host's systemd for what only it may do with the
// control groups that it makes, so that a scope which runc had it start is taken
// away by the one that keeps it.
//
// Always holds: systemd's word proves nothing about processes or bounds, which
// are read from the control group's own files; a unit counts as gone only once
// systemd knows none of its name; and nothing is asked to be stopped but by the
// whole name of one unit.
package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/drumsbench/drumsbench/engine"
)

// The sockets by which systemd is reached: its own, which root alone may use and
// which needs no bus, and that of the system's bus.
const (
	Private = "/run/systemd/private"
	Bus     = "/run/dbus/system_bus_socket"
)

// Names of systemd's on D-Bus (org.freedesktop.systemd1(5)).
const (
	destination = "org.freedesktop.systemd1"
	object      = dbus.ObjectPath("/org/freedesktop/systemd1")
	manager     = destination + ".Manager"
	noSuchUnit  = destination + ".NoSuchUnit"
)

// booted is a folder wherever systemd is the first process (sd_booted(3)).
const booted = "/run/systemd/system"

// Here says whether systemd runs this host.
func Here() bool {
	info, err := os.Lstat(booted)
	return err == nil && info.IsDir()
}

// Reached are what a program needs to find of the host to reach systemd, which it
// does by the bus or without.
func Reached() []string {
	found := []string{}
	for _, path := range []string{booted, Bus, Private} {
		if _, err := os.Lstat(path); err == nil {
			found = append(found, path)
		}
	}
	return found
}

// Manager is the systemd of this host. The zero value is ready: each call
// connects anew.
type Manager struct {
	// Socket is where it is reached; empty for the usual places.
	Socket string
}

// connect reaches systemd. ErrUnknown where nobody answers.
func (m Manager) connect(ctx context.Context) (*dbus.Conn, error) {
	sockets := []string{Private, Bus}
	if m.Socket != "" {
		sockets = []string{m.Socket}
	}
	var errs []error
	for _, socket := range sockets {
		c, err := dbus.Dial("unix:path="+socket, dbus.WithContext(ctx))
		if err == nil {
			// By number: a name would have to be looked up.
			if err = c.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Getuid()))}); err == nil && socket == Bus {
				err = c.Hello()
			}
			if err == nil {
				return c, nil
			}
			err = errors.Join(err, c.Close())
		}
		errs = append(errs, fmt.Errorf("%s: %w", socket, err))
	}
	return nil, &engine.Error{Op: "reach systemd", Err: fmt.Errorf("%w: %w", engine.ErrUnknown, errors.Join(errs...)),
		Hint: "see whether systemd runs this host: systemctl is-system-running"}
}

// Version of the systemd that answers. ErrUnknown where none does.
func (m Manager) Version(ctx context.Context) (string, error) {
	c, err := m.connect(ctx)
	if err != nil {
		return "", err
	}
	defer c.Close()
	v, err := property(ctx, c, object, manager, "Version")
	if err != nil {
		return "", &engine.Error{Op: "ask systemd for its version", Err: fmt.Errorf("%w: %w", engine.ErrUnknown, err)}
	}
	return v, nil
}

func property(ctx context.Context, c *dbus.Conn, at dbus.ObjectPath, of, name string) (string, error) {
	var v dbus.Variant
	if err := c.Object(destination, at).CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, of, name).Store(&v); err != nil {
		return "", err
	}
	text, ok := v.Value().(string) // the library's own conversion makes a text of a number
	if !ok {
		return "", fmt.Errorf("%s is of type %s, not a text", name, v.Signature())
	}
	return text, nil
}

// state of a unit; empty where systemd knows none of that name.
func state(ctx context.Context, c *dbus.Conn, unit string) (string, error) {
	var at dbus.ObjectPath
	err := c.Object(destination, object).CallWithContext(ctx, manager+".GetUnit", 0, unit).Store(&at)
	if err == nil {
		var s string
		if s, err = property(ctx, c, at, destination+".Unit", "ActiveState"); err == nil {
			return s, nil
		}
	}
	if unknown(err) {
		return "", nil
	}
	return "", err
}

// unknown says whether an error of systemd's says that there is no such unit. An
// object that is gone by the time it is asked for a property is none either.
func unknown(err error) bool {
	var e dbus.Error
	return errors.As(err, &e) && (e.Name == noSuchUnit || e.Name == "org.freedesktop.DBus.Error.UnknownObject")
}

// stopPoll is the time between two looks at a unit that is about to go.
const stopPoll = 2 * time.Millisecond

// Stop has systemd end a unit and forget it, and returns once it knows none of
// that name. Idempotent. Whether the unit is one to be stopped its caller knows.
// ErrUnknown where systemd cannot be asked, ErrDeadline where ctx ends first.
func (m Manager) Stop(ctx context.Context, unit string) error {
	op := "stop " + unit
	c, err := m.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	last := "asked for"
	ask := func(method string, args ...any) error {
		return c.Object(destination, object).CallWithContext(ctx, manager+"."+method, 0, args...).Err
	}
	for asked := false; ; {
		now, err := state(ctx, c, unit)
		switch {
		case err != nil:
		case now == "":
			return nil
		case now == "failed":
			err = ask("ResetFailedUnit", unit)
		case !asked:
			asked = true
			err = ask("StopUnit", unit, "replace")
		}
		if err != nil && ctx.Err() == nil && !unknown(err) {
			return &engine.Error{Op: op, Err: fmt.Errorf("%w: %w", engine.ErrUnknown, err), Hint: "systemctl status " + unit}
		}
		if now != "" {
			last = now
		}
		select {
		case <-ctx.Done():
			return &engine.Error{Op: op, Err: fmt.Errorf("%w: it is %s: %w", engine.ErrDeadline, last, context.Cause(ctx)), Hint: "systemctl status " + unit}
		case <-time.After(stopPoll):
		}
	}
}
