package offer

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/drumsbench/drumsbench/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// inSlot is a server where Dial finds it: what a slot's network namespace is to an offer.
func inSlot(t *testing.T, serve func(net.Conn)) Dial {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		running.Wait()
	})
	running.Add(1)
	go func() {
		defer running.Done()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Add(1)
			go func() {
				defer running.Done()
				defer c.Close()
				serve(c)
			}()
		}
	}()
	return func(ctx context.Context, port int) (net.Conn, error) {
		if port != 5000 {
			return nil, engine.ErrUsage
		}
		return new(net.Dialer).DialContext(ctx, "tcp4", l.Addr().String())
	}
}

func open(t *testing.T, dial Dial) *Offer {
	t.Helper()
	o, err := Open(t.Context(), dial, 5000)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, o) })
	return o
}

func shut(t *testing.T, o *Offer) Used {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	used, err := o.Close(ctx)
	if err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("tcp4", o.Address()); err == nil {
		c.Close()
		t.Errorf("somebody still listens on %s", o.Address())
	} else if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial a closed offer: %v", err)
	}
	return used
}

// idle waits until every exchange is over: a client can have its answer before the server has closed.
func idle(t *testing.T, o *Offer) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		o.mu.Lock()
		n := len(o.open)
		o.mu.Unlock()
		if n == 0 {
			return
		}
	}
	t.Error("an exchange does not end")
}

func dialOffer(t *testing.T, o *Offer) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp4", o.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// Case 24: parallel slots beside a foreign listener.
func TestPortsDoNotMeet(t *testing.T) {
	foreign, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	dial := inSlot(t, func(c net.Conn) { io.Copy(c, c) })
	const many = 50
	offers := make([]*Offer, many)
	var all sync.WaitGroup
	for i := range offers {
		all.Add(1)
		go func() {
			defer all.Done()
			o, err := Open(t.Context(), dial, 5000)
			if err != nil {
				t.Error(err)
				return
			}
			offers[i] = o
		}()
	}
	all.Wait()
	seen := map[string]int{foreign.Addr().String(): -1}
	for i, o := range offers {
		if o == nil {
			t.FailNow()
		}
		if other, twice := seen[o.Address()]; twice {
			t.Errorf("offers %d and %d share %s (-1 is the foreign listener)", other, i, o.Address())
		}
		seen[o.Address()] = i
		if host, _, _ := net.SplitHostPort(o.Address()); host != "127.0.0.1" {
			t.Errorf("offer %d listens on %s", i, o.Address())
		}
		c := dialOffer(t, o)
		if _, err := c.Write([]byte{byte(i)}); err != nil {
			t.Error(err)
		}
		got := make([]byte, 1)
		if _, err := io.ReadFull(c, got); err != nil || got[0] != byte(i) {
			t.Errorf("offer %d gave %v, %v", i, got, err)
		}
	}
	for _, o := range offers {
		all.Add(1)
		go func() {
			defer all.Done()
			if used := shut(t, o); used.Connections != 1 || used.Reset != 1 || used.Failed != nil {
				t.Errorf("used %+v", used)
			}
		}()
	}
	all.Wait()
	c, err := net.Dial("tcp4", foreign.Addr().String())
	if err != nil {
		t.Errorf("the foreign listener is gone: %v", err)
	} else {
		c.Close()
	}
}

// What is sent arrives unchanged, also after one side has closed its half.
func TestCarriesBytes(t *testing.T) {
	sent, answer := make([]byte, 5<<20), make([]byte, 3<<20)
	rand.Read(sent)
	rand.Read(answer)
	arrived := make(chan []byte, 1)
	o := open(t, inSlot(t, func(c net.Conn) {
		got, _ := io.ReadAll(c) // until the client's half is closed
		arrived <- got
		c.Write(answer)
	}))
	c := dialOffer(t, o)
	if _, err := c.Write(sent); err != nil {
		t.Fatal(err)
	}
	c.CloseWrite()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, answer) {
		t.Errorf("%d bytes came back of %d, %v", len(got), len(answer), err)
	}
	if !bytes.Equal(<-arrived, sent) {
		t.Error("what arrived is not what was sent")
	}
	c.Close()
	idle(t, o)
	if used := shut(t, o); used.Connections != 1 || used.Reset != 0 {
		t.Errorf("used %+v", used)
	}
}

// A plain HTTP client notices nothing.
func TestPlainHTTPClient(t *testing.T) {
	l := make(chan net.Conn)
	hs := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Connection", "close")
		w.Write([]byte(r.Method + " " + r.URL.Path + " " + string(body)))
	})}
	served := make(chan error, 1)
	go func() { served <- hs.Serve(chanListener{l, make(chan struct{})}) }()
	defer func() { hs.Close(); <-served }()
	o := open(t, func(ctx context.Context, _ int) (net.Conn, error) {
		a, b := net.Pipe() // as the fake arm: no half of it can be closed
		l <- b
		return a, nil
	})
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for range 3 {
		r, err := client.Post(o.URL()+"/execute", "text/plain", strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || string(body) != "POST /execute hello" {
			t.Errorf("%q, %v", body, err)
		}
	}
	idle(t, o)
	if used := shut(t, o); used.Connections != 3 || used.Reset != 0 || used.Failed != nil {
		t.Errorf("used %+v", used)
	}
}

type chanListener struct {
	conns chan net.Conn
	done  chan struct{}
}

func (l chanListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l chanListener) Close() error { close(l.done); return nil }
func (chanListener) Addr() net.Addr { return &net.TCPAddr{} }

// Close resets both sides of what is open, whoever of them is silent.
func TestCloseResets(t *testing.T) {
	ends := make(chan error, 1)
	o := open(t, inSlot(t, func(c net.Conn) {
		_, err := io.Copy(io.Discard, c)
		ends <- err
	}))
	c := dialOffer(t, o)
	c.Write([]byte("half a request"))
	time.Sleep(50 * time.Millisecond)
	if used := shut(t, o); used.Reset != 1 {
		t.Errorf("used %+v", used)
	}
	if err := <-ends; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the server saw %v, want a reset: an end would leave the connection in TIME_WAIT", err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client saw %v, want a reset", err)
	}
}

// A client that goes away ends what it asked for.
func TestClientGone(t *testing.T) {
	ends := make(chan error, 1)
	o := open(t, inSlot(t, func(c net.Conn) {
		_, err := io.Copy(io.Discard, c)
		ends <- err
	}))
	dialOffer(t, o).Close()
	select {
	case <-ends:
	case <-time.After(5 * time.Second):
		t.Error("the server does not see that its client is gone")
	}
}

// A slot that cannot be reached is told, and the client is not left waiting.
func TestUnreachable(t *testing.T) {
	o := open(t, func(context.Context, int) (net.Conn, error) { return nil, engine.ErrDead })
	c, err := net.Dial("tcp4", o.Address())
	if err == nil { // else the reset was there first
		c.SetReadDeadline(time.Now().Add(5 * time.Second))
		_, err = c.Read(make([]byte, 1))
		c.Close()
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client saw %v, want a reset", err)
	}
	if used := shut(t, o); !errors.Is(used.Failed, engine.ErrDead) || used.Connections != 1 {
		t.Errorf("used %+v", used)
	}
}

// A dial that hangs ends with the offer.
func TestCloseWhileDialling(t *testing.T) {
	dialling := make(chan struct{})
	o := open(t, func(ctx context.Context, _ int) (net.Conn, error) {
		close(dialling)
		<-ctx.Done()
		return nil, ctx.Err()
	})
	dialOffer(t, o)
	<-dialling
	if used := shut(t, o); used.Reset != 1 || used.Failed != nil {
		t.Errorf("used %+v", used)
	}
}

// More connections than are carried at a time wait and are served.
func TestManyConnections(t *testing.T) {
	o := open(t, inSlot(t, func(c net.Conn) { io.Copy(c, c) }))
	var all sync.WaitGroup
	for range 2 * most {
		all.Add(1)
		go func() {
			defer all.Done()
			c, err := net.Dial("tcp4", o.Address())
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			c.Write([]byte("x"))
			if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
				t.Error(err)
			}
		}()
	}
	all.Wait()
}
