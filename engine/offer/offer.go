// Package offer lends a slot's guest server a port on the host's loopback
// interface, so that a plain HTTP client which knows nothing of slots can talk to it.
//
// What always holds: the port is the kernel's choice and is held from then on, so
// no two offers meet and nobody else's listener is touched; what is sent arrives
// unchanged, in both directions; once Close has returned, nobody listens on the
// port and no connection of the offer's is open in the slot, half-closed or
// waiting: each was reset, which is what a dump asks for.
package offer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/drumsbench/drumsbench/engine"
)

const (
	// most connections at a time; the kernel's queue holds others back.
	most = 128
	// farewell is how long a client may take to close once the server has closed.
	farewell = 2 * time.Second
)

// Dial connects to a TCP port on a slot's loopback interface, as engine.Slot.Dial does.
type Dial func(ctx context.Context, port int) (net.Conn, error)

// Offer is an open port. Safe for concurrent use.
type Offer struct {
	listener net.Listener
	cancel   context.CancelFunc
	running  sync.WaitGroup
	once     sync.Once

	mu     sync.Mutex
	closed bool
	open   map[*pair]bool
	used   Used
}

// Used is what an offer was used for.
type Used struct {
	// Connections that were taken.
	Connections int
	// Reset are those that were still open at the close.
	Reset int
	// Failed is why the first connection that did not reach the guest server did not.
	Failed error
}

// Open listens on a port of 127.0.0.1 that the kernel picks and takes each
// connection to port in the slot. It serves until Close, whatever becomes of ctx.
func Open(ctx context.Context, dial Dial, port int) (*Offer, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	l, err := config.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, &engine.Error{Op: "offer guest server", Err: err}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	o := &Offer{listener: l, cancel: cancel, open: map[*pair]bool{}}
	o.running.Add(1)
	go func() {
		defer o.running.Done()
		o.accept(ctx, dial, port)
	}()
	return o, nil
}

// Address is "127.0.0.1:PORT".
func (o *Offer) Address() string { return o.listener.Addr().String() }

// URL is the base of the guest server's, "http://127.0.0.1:PORT".
func (o *Offer) URL() string { return "http://" + o.Address() }

// Close takes the port away and resets what is open. It returns when nothing of
// the offer runs any more, or with ctx's error. Idempotent.
func (o *Offer) Close(ctx context.Context) (Used, error) {
	o.once.Do(func() {
		o.mu.Lock()
		o.closed = true
		for p := range o.open {
			if p.end() {
				o.used.Reset++
			}
		}
		o.mu.Unlock()
		o.cancel()
		o.listener.Close() // fails only where it is closed
	})
	idle := make(chan struct{})
	go func() {
		o.running.Wait()
		close(idle)
	}()
	select {
	case <-idle:
	case <-ctx.Done():
		return Used{}, &engine.Error{Op: "close offer of guest server", Err: fmt.Errorf("a connection is still open: %w", context.Cause(ctx))}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.used, nil
}

func (o *Offer) accept(ctx context.Context, dial Dial, port int) {
	slots := make(chan struct{}, most)
	for {
		slots <- struct{}{}
		client, err := o.listener.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			<-slots
			time.Sleep(10 * time.Millisecond) // out of descriptors; the kernel's queue waits
			continue
		}
		o.running.Add(1)
		go func() {
			defer o.running.Done()
			defer func() { <-slots }()
			o.serve(ctx, client, dial, port)
		}()
	}
}

func (o *Offer) serve(ctx context.Context, client net.Conn, dial Dial, port int) {
	o.mu.Lock()
	o.used.Connections++
	o.mu.Unlock()
	server, err := dial(ctx, port)
	if err != nil {
		abort(client)
		o.mu.Lock()
		defer o.mu.Unlock()
		switch {
		case o.closed:
			o.used.Reset++
		case o.used.Failed == nil:
			o.used.Failed = err
		}
		return
	}
	p := &pair{client: client, server: server}
	defer o.drop(p)
	if o.add(p) {
		p.carry()
	}
}

// add keeps p for Close to reset; false if that has been.
func (o *Offer) add(p *pair) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		o.used.Reset++
		return false
	}
	o.open[p] = true
	return true
}

func (o *Offer) drop(p *pair) {
	p.end()
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.open, p)
}

// pair is one connection of a client's and the one in the slot that it stands for.
type pair struct {
	client, server net.Conn

	mu sync.Mutex
	// answered: the server has closed, and the client was sent all that came before.
	answered, ended bool
}

// carry copies both ways until both have ended. The end of one direction is
// passed on as such where the connection can be closed by halves: a client that
// goes away ends what it asked for, as it would on a direct connection.
func (p *pair) carry() {
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		if _, err := io.Copy(p.server, p.client); err != nil {
			p.end()
			return
		}
		closeWrite(p.server)
	}()
	if _, err := io.Copy(p.client, p.server); err != nil {
		p.end()
	} else {
		p.answer()
	}
	<-sent
}

// answer notes that the server has closed. A reset takes away what the slot's
// kernel keeps of the connection; the client's end is the client's to close.
func (p *pair) answer() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	p.answered = true
	abort(p.server)
	closeWrite(p.client)
	p.client.SetReadDeadline(time.Now().Add(farewell))
}

// end closes both, with a reset and true if the exchange was not over. Idempotent.
func (p *pair) end() (reset bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.ended:
		return false
	case p.answered:
		p.client.Close() // what is on its way to the client still arrives
	default:
		abort(p.client)
		abort(p.server)
	}
	p.ended = true
	return !p.answered
}

func closeWrite(c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		half.CloseWrite()
	}
}

// abort closes a connection with a reset: no FIN_WAIT, no TIME_WAIT, nothing queued.
func abort(c net.Conn) {
	if tcp, ok := c.(interface{ SetLinger(int) error }); ok {
		tcp.SetLinger(0)
	}
	c.Close()
}
