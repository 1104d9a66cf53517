package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
)

const (
	displaySocket = "/tmp/.X11-unix/X0" // of proto.Display
	// displayTime is how long the X server may take for all that one request asks of it.
	displayTime = 5 * time.Second
)

var errNoDisplay = errors.New("the guest has no display")

// screen is the way to the slot's X server. Nothing is kept between two requests:
// each makes a connection, and has closed it, and seen the server hang up, before it
// is answered. So a dump finds no connection; at worst it finds the server between
// its shutdown(2) and its close(2) of one whose other end is gone.
type screen struct{}

// connection to the X server, for one request.
type connection struct {
	*wire
	root          windowID
	width, height int // of the root as it is now; the set-up's are those of the server's start
	depth         int
}

// with connects, calls use, and closes. A nil screen is errNoDisplay.
func (s *screen) with(use func(*connection) error) (err error) {
	if s == nil {
		return errNoDisplay
	}
	w, err := dialX(displaySocket, time.Now().Add(displayTime))
	if err != nil {
		return fmt.Errorf("connect to X server %s: %w", proto.Display, err)
	}
	defer func() {
		if shut := w.close(); err == nil && shut != nil {
			err = fmt.Errorf("close connection to X server: %w", shut)
		}
	}()
	c := &connection{wire: w, root: w.setup.root}
	f, err := c.ask(newRequest(opGetGeometry, 0, uint32(c.root)))
	if err != nil {
		return fmt.Errorf("read size of screen: %w", err)
	}
	f.u8()
	c.depth = int(f.u8())
	f.bytes(14)
	c.width, c.height = int(f.u16()), int(f.u16())
	if c.width == 0 || c.height == 0 {
		return fmt.Errorf("%w: a screen of %dx%d pixels", errNonsense, c.width, c.height)
	}
	if err := use(c); err != nil {
		return err
	}
	if w.short {
		return fmt.Errorf("%w: a reply that ends early", errNonsense)
	}
	return nil
}

// atoms looks names up; one that no client of the server has used yet is atomNone.
func (c *connection) atoms(names ...string) (map[string]atom, error) {
	const onlyIfExists = 1
	requests := make([]request, len(names))
	for i, name := range names {
		requests[i] = newRequest(opInternAtom, onlyIfExists, uint32(len(name))).text(name)
	}
	replies, refused, err := c.askAll(requests...)
	if err := errors.Join(refused, err); err != nil {
		return nil, err
	}
	out := make(map[string]atom, len(names))
	for i, f := range replies {
		f.bytes(8)
		out[names[i]] = atom(f.u32())
	}
	return out, nil
}

// get reads a property of at most size bytes. One whose name nobody has used is empty, as an absent one is.
func (c *connection) get(w windowID, name atom, size int) (property, error) {
	if name == atomNone {
		return property{}, nil
	}
	f, err := c.ask(getProperty(w, name, size))
	if err != nil {
		return property{}, err
	}
	return f.property(), nil
}
