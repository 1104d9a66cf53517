package systemd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/drumsbench/drumsbench/engine"
)

// answers is a systemd on a socket: what it replies to a method's call, with an
// error's name where it is one. nil hangs up.
type answers func(member string, body []any) (reply any, errorName string)

// serve lets a systemd answer on a socket, and returns the socket with the calls so far.
func serve(t *testing.T, a answers) (socket string, calls func() []string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "systemd")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var (
		mu   sync.Mutex
		seen []string
		wait sync.WaitGroup
	)
	wait.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wait.Go(func() {
				defer c.Close()
				talk(c, func(member string, body []any) (any, string) {
					mu.Lock()
					defer mu.Unlock()
					seen = append(seen, strings.TrimSpace(member+" "+fmt.Sprint(body...)))
					return a(member, body)
				})
			})
		}
	})
	t.Cleanup(func() { l.Close(); wait.Wait() })
	return socket, func() []string { mu.Lock(); defer mu.Unlock(); return slices.Clone(seen) }
}

// talk is the server's side of D-Bus: its handshake, then a reply for each call.
func talk(c net.Conn, a answers) {
	r := bufio.NewReader(c)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		line = strings.TrimLeft(strings.TrimSpace(line), "\x00")
		switch line {
		case "AUTH":
			fmt.Fprint(c, "REJECTED EXTERNAL\r\n")
		case "AUTH EXTERNAL":
			fmt.Fprint(c, "OK 0123456789abcdef0123456789abcdef\r\n")
		case "BEGIN":
			replies(c, r, a)
			return
		default: // passing descriptors, too
			fmt.Fprint(c, "ERROR\r\n")
		}
	}
}

func replies(c net.Conn, r *bufio.Reader, a answers) {
	for serial := uint32(1); ; serial++ {
		m, err := dbus.DecodeMessage(r)
		if err != nil {
			return
		}
		reply, name := a(m.Headers[dbus.FieldMember].Value().(string), m.Body)
		if reply == nil && name == "" {
			return
		}
		out := &dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{dbus.FieldReplySerial: dbus.MakeVariant(m.Serial())}}
		if name != "" {
			out.Type = dbus.TypeError
			out.Headers[dbus.FieldErrorName] = dbus.MakeVariant(name)
			reply = "as planted"
		}
		out.Body = []any{reply}
		out.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(reply))
		var b bytes.Buffer
		if err := out.EncodeTo(&b, binary.LittleEndian); err != nil {
			panic(err)
		}
		// The message's own number, which the library keeps to itself.
		binary.LittleEndian.PutUint32(b.Bytes()[8:], serial)
		if _, err := c.Write(b.Bytes()); err != nil {
			return
		}
	}
}

const unit = "drums-0123456789ab-slot-1.scope"

// life answers for one unit that goes through states, one each time it is asked for.
func life(states ...string) answers {
	return func(member string, body []any) (any, string) {
		switch member {
		case "GetUnit":
			if states[0] == "" {
				return nil, noSuchUnit
			}
			return dbus.ObjectPath("/org/freedesktop/systemd1/unit/x"), ""
		case "Get":
			now := states[0]
			if len(states) > 1 {
				states = states[1:]
			}
			return dbus.MakeVariant(now), ""
		case "StopUnit":
			return dbus.ObjectPath("/org/freedesktop/systemd1/job/1"), ""
		case "ResetFailedUnit":
			return true, ""
		}
		return nil, "org.freedesktop.DBus.Error.UnknownMethod"
	}
}

func TestStop(t *testing.T) {
	get, stop, reset := "GetUnit "+unit, "StopUnit "+unit+" replace", "ResetFailedUnit "+unit
	state := "Get org.freedesktop.systemd1.Unit ActiveState"
	for name, c := range map[string]struct {
		states []string
		want   []string
	}{
		"never there":         {[]string{""}, []string{get}},
		"running":             {[]string{"active", "deactivating", ""}, []string{get, state, stop, get, state, get}},
		"failed":              {[]string{"failed", ""}, []string{get, state, reset, get}},
		"fails while stopped": {[]string{"active", "failed", ""}, []string{get, state, stop, get, state, reset, get}},
	} {
		t.Run(name, func(t *testing.T) {
			socket, calls := serve(t, life(c.states...))
			if err := (Manager{Socket: socket}).Stop(t.Context(), unit); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, call := range calls() { // fmt puts no space between two strings
				got = append(got, strings.ReplaceAll(call, unit+"replace", unit+" replace"))
			}
			for i := range got {
				got[i] = strings.ReplaceAll(got[i], "UnitActiveState", "Unit ActiveState")
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("asked %q, want %q", got, c.want)
			}
		})
	}
}

func TestStopFails(t *testing.T) {
	t.Run("a unit that stays", func(t *testing.T) {
		socket, _ := serve(t, life("deactivating"))
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		err := Manager{Socket: socket}.Stop(ctx, unit)
		if !errors.Is(err, engine.ErrDeadline) || !strings.Contains(err.Error(), "it is deactivating") {
			t.Error(err)
		}
	})
	for name, c := range map[string]struct {
		answers answers
		want    string
	}{
		"access denied": {func(string, []any) (any, string) { return nil, "org.freedesktop.DBus.Error.AccessDenied" }, "as planted"},
		"hung up":       {func(string, []any) (any, string) { return nil, "" }, ""},
		"no state":      {life2(dbus.MakeVariant(7)), "type"},
		"a refusal": {func(member string, body []any) (any, string) {
			if member == "StopUnit" {
				return nil, "org.freedesktop.systemd1.OnlyByDependency"
			}
			return life("active")(member, body)
		}, "as planted"},
	} {
		t.Run(name, func(t *testing.T) {
			socket, _ := serve(t, c.answers)
			err := Manager{Socket: socket}.Stop(t.Context(), unit)
			if !errors.Is(err, engine.ErrUnknown) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want an unknown that says %q", err, c.want)
			}
		})
	}
	t.Run("nobody answers", func(t *testing.T) {
		for _, err := range []error{
			Manager{Socket: filepath.Join(t.TempDir(), "no such")}.Stop(t.Context(), unit),
			func() error {
				_, err := Manager{Socket: filepath.Join(t.TempDir(), "no such")}.Version(t.Context())
				return err
			}(),
		} {
			if !errors.Is(err, engine.ErrUnknown) || engine.Failure(err).Hint == "" {
				t.Error(err)
			}
		}
	})
}

// life2 has a state of another type.
func life2(v dbus.Variant) answers {
	return func(member string, body []any) (any, string) {
		if member == "Get" {
			return v, ""
		}
		return life("active")(member, body)
	}
}

func TestVersion(t *testing.T) {
	socket, _ := serve(t, func(member string, body []any) (any, string) {
		if member == "Get" && body[1] == "Version" {
			return dbus.MakeVariant("252.38-1~deb12u1"), ""
		}
		return nil, "org.freedesktop.DBus.Error.UnknownMethod"
	})
	v, err := Manager{Socket: socket}.Version(t.Context())
	if err != nil || v != "252.38-1~deb12u1" {
		t.Errorf("%q, %v", v, err)
	}
	socket, _ = serve(t, func(string, []any) (any, string) { return nil, "org.freedesktop.DBus.Error.Failed" })
	if _, err := (Manager{Socket: socket}).Version(t.Context()); !errors.Is(err, engine.ErrUnknown) {
		t.Error(err)
	}
}
