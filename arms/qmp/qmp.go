// Package qmp talks to QEMU's machine protocol. It implements qmp.Monitor of
// digitalocean/go-qemu, whose own socket monitor has data races, no deadline,
// an end at replies of 64 KiB and a deadlock where events are not drained.
//
// Always holds: one goroutine reads and ends with the connection; a reply goes
// to the command that bears its id and to nobody else; a line may be as long as
// Options.Line and no longer; each command has a deadline; an event that a
// subscriber has no room for is dropped and counted, never waited with. What
// breaks the protocol ends the connection, since nothing behind it can be believed.
package qmp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/digitalocean/go-qemu/qmp"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
)

// Sentinels, for errors.Is.
var (
	// ErrProtocol: the server sent what QMP does not allow. The connection is ended.
	ErrProtocol = errors.New("the QMP server broke the protocol")
	// ErrTooLarge: a line is longer than Options.Line. The connection is ended.
	ErrTooLarge = errors.New("line is too long")
)

// CommandError is QEMU's answer that a command failed.
type CommandError struct {
	// Class and Desc as QEMU gives them (qapi/error.json).
	Class, Desc string
}

func (e *CommandError) Error() string { return e.Class + ": " + e.Desc }

// Options bound what a server can make us hold and wait for. A zero field takes its default.
type Options struct {
	// Line is the length of the longest reply or event, in bytes; 64 MiB.
	Line int
	// Timeout is for Connect and Run, whose interface has no context; 30 s.
	Timeout time.Duration
	// Events is how many events a subscriber may be behind; 64.
	Events int
}

// Monitor is a connection to one QEMU. Safe for concurrent use. It implements qmp.Monitor.
type Monitor struct {
	options Options
	conn    net.Conn
	version qmp.Version
	// write is held by whoever writes a command.
	write chan struct{}
	// done is closed when the reader has ended.
	done    chan struct{}
	dropped atomic.Uint64

	mu      sync.Mutex
	next    uint64
	pending map[string]chan reply
	// given up are commands whose caller no longer waits; their replies are thrown away.
	abandoned map[string]bool
	listeners map[*listener]bool
	err       error
}

var _ qmp.Monitor = (*Monitor)(nil)

// reply is one reply as it came.
type reply struct {
	raw    []byte
	result json.RawMessage
	err    error
}

type listener struct {
	events chan qmp.Event
	stop   func() bool
}

// Dial connects to the unix socket at path, reads the greeting and leaves the
// negotiation mode. A server that already has a client does not greet
// (engine.ErrDeadline); ctx's error wrapped where ctx ends first.
func Dial(ctx context.Context, path string, o Options) (*Monitor, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, &engine.Error{Op: "connect to QMP", Err: err}
	}
	return Open(ctx, conn, o)
}

// Open is Dial on a connection that is there. It owns conn and closes it where it fails.
func Open(ctx context.Context, conn net.Conn, o Options) (*Monitor, error) {
	if o.Line == 0 {
		o.Line = 64 << 20
	}
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	if o.Events == 0 {
		o.Events = 64
	}
	m := &Monitor{options: o, conn: conn, write: make(chan struct{}, 1), done: make(chan struct{}),
		pending: map[string]chan reply{}, abandoned: map[string]bool{}, listeners: map[*listener]bool{}}
	const op = "connect to QMP"
	limited, cancel := context.WithTimeoutCause(ctx, o.Timeout, fmt.Errorf("%w: no greeting within %s", engine.ErrDeadline, o.Timeout))
	defer cancel()
	stop := context.AfterFunc(limited, func() { conn.SetReadDeadline(time.Unix(1, 0)) })
	in := bufio.NewReaderSize(conn, 64<<10)
	err := m.greeting(in)
	if !stop() && err == nil {
		err = context.Cause(limited)
	}
	if err != nil {
		conn.Close()
		if limited.Err() != nil {
			err = context.Cause(limited)
		}
		return nil, &engine.Error{Op: op, Err: err, Hint: "QEMU serves one client at a time: a second one is not greeted"}
	}
	go m.read(in)
	if _, err := m.run(limited, nil, "qmp_capabilities", nil); err != nil {
		return nil, errors.Join(&engine.Error{Op: op, Err: err}, m.Disconnect())
	}
	return m, nil
}

func (m *Monitor) greeting(in *bufio.Reader) error {
	line, err := m.line(in)
	if err != nil {
		return err
	}
	var g struct {
		QMP *struct {
			Version *qmp.Version `json:"version"`
		}
	}
	if err := json.Unmarshal(line, &g); err != nil || g.QMP == nil || g.QMP.Version == nil {
		return fmt.Errorf("%w: greeting %s", ErrProtocol, clip(line))
	}
	m.version = *g.QMP.Version
	return nil
}

// line reads one line, of at most Options.Line bytes.
func (m *Monitor) line(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		if len(line)+len(part) > m.options.Line {
			return nil, fmt.Errorf("%w: %w: more than %d bytes", ErrProtocol, ErrTooLarge, m.options.Line)
		}
		line = append(line, part...)
		if err == nil {
			return bytes.TrimSpace(line), nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
	}
}

// read is the only reader of the connection.
func (m *Monitor) read(in *bufio.Reader) {
	var err error
	for err == nil {
		var line []byte
		if line, err = m.line(in); err == nil && len(line) > 0 {
			err = m.take(line)
		}
	}
	m.conn.Close()
	m.mu.Lock()
	if m.err == nil {
		m.err = err
		if !errors.Is(err, ErrProtocol) {
			m.err = fmt.Errorf("%w: the QMP connection ended: %w", engine.ErrDead, err)
		}
	}
	for id, c := range m.pending {
		c <- reply{err: m.err}
		delete(m.pending, id)
	}
	for l := range m.listeners {
		m.drop(l)
	}
	m.mu.Unlock()
	close(m.done)
}

// take hands on one line.
func (m *Monitor) take(line []byte) error {
	var r struct {
		ID     *string         `json:"id"`
		Return json.RawMessage `json:"return"`
		Error  *struct {
			Class string `json:"class"`
			Desc  string `json:"desc"`
		} `json:"error"`
		Event *string `json:"event"`
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrProtocol, clip(line), err)
	}
	kinds := 0
	for _, there := range []bool{r.Return != nil, r.Error != nil, r.Event != nil} {
		if there {
			kinds++
		}
	}
	if kinds != 1 {
		return fmt.Errorf("%w: neither one reply nor one event: %s", ErrProtocol, clip(line))
	}
	if r.Event != nil {
		var e qmp.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("%w: event %s: %w", ErrProtocol, clip(line), err)
		}
		m.publish(e)
		return nil
	}
	if r.ID == nil {
		return fmt.Errorf("%w: reply without an id: %s", ErrProtocol, clip(line))
	}
	out := reply{raw: line, result: r.Return}
	if r.Error != nil {
		out.err = &CommandError{Class: r.Error.Class, Desc: r.Error.Desc}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c, waited := m.pending[*r.ID]
	switch {
	case waited:
		delete(m.pending, *r.ID)
		c <- out // has room for one
	case m.abandoned[*r.ID]:
		delete(m.abandoned, *r.ID)
	default:
		return fmt.Errorf("%w: reply to a command that nobody sent: %s", ErrProtocol, clip(line))
	}
	return nil
}

// publish gives an event to every subscriber that has room for it.
func (m *Monitor) publish(e qmp.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for l := range m.listeners {
		select {
		case l.events <- e:
		default:
			m.dropped.Add(1)
		}
	}
}

// Dropped is how many events subscribers had no room for.
func (m *Monitor) Dropped() uint64 { return m.dropped.Load() }

// Version is QEMU's, from its greeting.
func (m *Monitor) Version() qmp.Version { return m.version }

// Done is closed once the connection has ended, whoever ended it.
func (m *Monitor) Done() <-chan struct{} { return m.done }

// Connect implements qmp.Monitor. A Monitor is connected from the start: it is an error once it is not.
func (m *Monitor) Connect() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// Disconnect implements qmp.Monitor: it closes the connection and returns once
// the reader has ended. QEMU itself runs on. Idempotent.
func (m *Monitor) Disconnect() error {
	m.mu.Lock()
	if m.err == nil {
		m.err = fmt.Errorf("%w: the QMP connection was closed", engine.ErrDead)
	}
	m.mu.Unlock()
	err := m.conn.Close()
	<-m.done
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	return err
}

// Events implements qmp.Monitor. The channel is closed when ctx ends or the
// connection does; who does not drain it loses events, see Dropped.
func (m *Monitor) Events(ctx context.Context) (<-chan qmp.Event, error) {
	l := &listener{events: make(chan qmp.Event, m.options.Events)}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return nil, m.err
	}
	m.listeners[l] = true
	l.stop = context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.drop(l)
	})
	return l.events, nil
}

// drop ends a subscription. m.mu is held.
func (m *Monitor) drop(l *listener) {
	if m.listeners[l] {
		delete(m.listeners, l)
		l.stop()
		close(l.events)
	}
}

// Run implements qmp.Monitor: command is a QMP command as JSON, its id is
// replaced, and the whole reply is returned.
func (m *Monitor) Run(command []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), m.options.Timeout, fmt.Errorf("%w: no reply within %s", engine.ErrDeadline, m.options.Timeout))
	defer cancel()
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(command, &fields); err != nil {
		return nil, fmt.Errorf("run QMP command: %w", err)
	}
	if string(fields["arguments"]) == "null" { // a nil map in a Command, which QEMU rejects
		delete(fields, "arguments")
	}
	r, err := m.send(ctx, nil, fields)
	if err != nil {
		return nil, err
	}
	return r.raw, nil
}

// Execute runs a command and decodes what it returns into out, unless out is
// nil. args is marshalled as the arguments; nil is none. *CommandError where
// QEMU refuses, engine.ErrDead where the connection ended, ctx's error wrapped
// where ctx ends first: QEMU may then run the command all the same.
func (m *Monitor) Execute(ctx context.Context, name string, args, out any) error {
	return m.ExecuteWithFile(ctx, nil, name, args, out)
}

// ExecuteWithFile is Execute that sends an open file along with the command, as
// getfd and add-fd want it. nil is none.
func (m *Monitor) ExecuteWithFile(ctx context.Context, f *os.File, name string, args, out any) error {
	result, err := m.run(ctx, f, name, args)
	if err == nil && out != nil {
		err = json.Unmarshal(result, out)
	}
	if err != nil {
		return &engine.Error{Op: "run QMP command " + name, Err: err}
	}
	return nil
}

func (m *Monitor) run(ctx context.Context, f *os.File, name string, args any) (json.RawMessage, error) {
	fields := map[string]json.RawMessage{"execute": json.RawMessage(strconv.Quote(name))}
	if args != nil {
		b, err := json.Marshal(args)
		if err != nil {
			return nil, err
		}
		fields["arguments"] = b
	}
	r, err := m.send(ctx, f, fields)
	return r.result, err
}

// send writes one command and waits for its reply.
func (m *Monitor) send(ctx context.Context, f *os.File, fields map[string]json.RawMessage) (reply, error) {
	if err := ctx.Err(); err != nil {
		return reply{}, context.Cause(ctx)
	}
	answer := make(chan reply, 1)
	m.mu.Lock()
	if m.err != nil {
		m.mu.Unlock()
		return reply{}, m.err
	}
	m.next++
	id := strconv.FormatUint(m.next, 10)
	m.pending[id] = answer
	m.mu.Unlock()
	fields["id"] = json.RawMessage(strconv.Quote(id))
	text, err := json.Marshal(fields)
	if err != nil {
		m.withdraw(id, false)
		return reply{}, err
	}
	select {
	case m.write <- struct{}{}:
	case <-ctx.Done():
		m.withdraw(id, false)
		return reply{}, context.Cause(ctx)
	case <-m.done:
		return receive(answer)
	}
	stop := context.AfterFunc(ctx, func() { m.conn.SetWriteDeadline(time.Unix(1, 0)) })
	err = m.put(append(text, '\n'), f)
	if !stop() && err == nil { // the deadline may be set by now, or any moment
		err = context.Cause(ctx)
	}
	if err != nil {
		// Half a command may be out: nothing more can be said on this connection.
		m.conn.Close()
	}
	<-m.write
	if err != nil {
		<-m.done
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		} else {
			err = fmt.Errorf("%w: %w", engine.ErrDead, err)
		}
		return reply{}, err
	}
	select {
	case r := <-answer:
		return r, r.err
	case <-ctx.Done():
		if m.withdraw(id, true) {
			return reply{}, context.Cause(ctx)
		}
		return receive(answer) // it came in between
	}
}

// put writes a command, and a file with its first byte.
func (m *Monitor) put(text []byte, f *os.File) error {
	if f == nil {
		_, err := m.conn.Write(text)
		return err
	}
	conn, ok := m.conn.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("send a file: %w: the connection is no unix socket", engine.ErrUsage)
	}
	n, _, err := conn.WriteMsgUnix(text, unix.UnixRights(int(f.Fd())), nil)
	if err == nil && n < len(text) {
		_, err = m.conn.Write(text[n:])
	}
	return err
}

func receive(c chan reply) (reply, error) {
	r := <-c
	return r, r.err
}

// withdraw forgets a command that nobody waits for any more; false if its reply
// is there. sent: the reply will come, and is to be thrown away.
func (m *Monitor) withdraw(id string, sent bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, waited := m.pending[id]; !waited {
		return false
	}
	delete(m.pending, id)
	if sent {
		m.abandoned[id] = true
	}
	return true
}

// clip is text of the server's, short enough for an error.
func clip(b []byte) string { return fmt.Sprintf("%.200q", b) }
