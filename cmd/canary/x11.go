package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// The clipboard is the X selection CLIPBOARD (ICCCM 2): its owner gives its text to
// whoever asks. A slot has one owner at a time, which holds all its tokens. The
// client speaks as much of the protocol (X.Org's x11protocol) as that takes; every
// length is bounded and nothing is waited for longer than patience.

// display is where the server of display :0 listens.
var display = "/tmp/.X11-unix/X0"

// mostData that is taken from the server at once.
const mostData = 1 << 16

// errNoDisplay: there is no server, and so no clipboard.
var errNoDisplay = errors.New("no display")

var order = binary.LittleEndian

// client is a connection to the X server with a window of its own.
type client struct {
	fd                             int
	window                         uint32
	clipboard, text, utf8, reading uint32
	events                         [][]byte
}

func dialX() (*client, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	c := &client{fd: fd}
	if err := c.open(); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return c, nil
}

func (c *client) Close() { unix.Close(c.fd) }

func (c *client) open() error {
	if err := patient(c.fd); err != nil {
		return err
	}
	if err := unix.Connect(c.fd, &unix.SockaddrUnix{Name: display}); errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		return errNoDisplay
	} else if err != nil {
		return err
	}
	if err := c.write([]byte{'l', 0, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		return err
	}
	head, err := c.read(8)
	if err != nil {
		return err
	}
	more, err := c.read(4 * int(order.Uint16(head[6:])))
	if err != nil {
		return err
	}
	if head[0] != 1 {
		return fmt.Errorf("the X server refuses: %.80q", more)
	}
	if len(more) < 32 {
		return errors.New("the X server's greeting is too short")
	}
	screen := 32 + pad(int(order.Uint16(more[16:]))) + 8*int(more[21])
	if len(more) < screen+4 {
		return errors.New("the X server has no screen")
	}
	c.window = order.Uint32(more[4:]) // the first of the client's own numbers
	for _, a := range []struct {
		name string
		to   *uint32
	}{{"CLIPBOARD", &c.clipboard}, {"STRING", &c.text}, {"UTF8_STRING", &c.utf8}, {"DRUMS_CANARY", &c.reading}} {
		if *a.to, err = c.atom(a.name); err != nil {
			return err
		}
	}
	// A window that shows nothing: InputOnly, never mapped.
	return c.request(1, 0, c.window, order.Uint32(more[screen:]), 0, 1|1<<16, 2<<16, 0, 0)
}

func pad(n int) int { return (n + 3) &^ 3 }

// request sends a request whose parts are four bytes each.
func (c *client) request(code, detail byte, parts ...uint32) error {
	b := []byte{code, detail, 0, 0}
	for _, p := range parts {
		b = order.AppendUint32(b, p)
	}
	order.PutUint16(b[2:], uint16(len(b)/4))
	return c.write(b)
}

// requestText is one that ends with text.
func (c *client) requestText(code, detail byte, text string, parts ...uint32) error {
	b := []byte{code, detail, 0, 0}
	for _, p := range parts {
		b = order.AppendUint32(b, p)
	}
	b = append(b, text...)
	b = append(b, make([]byte, pad(len(text))-len(text))...)
	order.PutUint16(b[2:], uint16(len(b)/4))
	return c.write(b)
}

func (c *client) atom(name string) (uint32, error) {
	if err := c.requestText(16, 0, name, uint32(len(name))); err != nil {
		return 0, err
	}
	r, err := c.reply()
	if err != nil {
		return 0, err
	}
	return order.Uint32(r[8:]), nil
}

func (c *client) write(b []byte) error {
	for len(b) > 0 {
		n, err := unix.SendmsgN(c.fd, b, nil, nil, unix.MSG_NOSIGNAL)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("write to the X server: %w", err)
		}
		b = b[n:]
	}
	return nil
}

func (c *client) read(n int) ([]byte, error) {
	if n > mostData {
		return nil, fmt.Errorf("the X server sends %d bytes", n)
	}
	b := make([]byte, n)
	for at := 0; at < n; {
		m, err := unix.Read(c.fd, b[at:])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, fmt.Errorf("read from the X server: %w", err)
		case m == 0:
			return nil, errors.New("the X server ended the connection")
		default:
			at += m
		}
	}
	return b, nil
}

// next is the next reply or event, whole.
func (c *client) next() ([]byte, error) {
	b, err := c.read(32)
	if err != nil {
		return nil, err
	}
	switch b[0] {
	case 0:
		return nil, fmt.Errorf("the X server refuses request %d: error %d", b[10], b[1])
	case 1, 35: // a reply, or an event of an extension
		size := order.Uint32(b[4:])
		if size > mostData/4 {
			return nil, fmt.Errorf("the X server sends %d words", size)
		}
		more, err := c.read(4 * int(size))
		return append(b, more...), err
	}
	return b, nil
}

// reply of the request that was sent last; events that come first are kept.
func (c *client) reply() ([]byte, error) {
	for range 1000 {
		b, err := c.next()
		if err != nil || b[0] == 1 {
			return b, err
		}
		c.events = append(c.events, b)
	}
	return nil, errors.New("the X server sends events and no reply")
}

// event is the next of a kind.
func (c *client) event(kind byte) ([]byte, error) {
	for range 1000 {
		var b []byte
		if len(c.events) > 0 {
			b, c.events = c.events[0], c.events[1:]
		} else {
			var err error
			if b, err = c.next(); err != nil {
				return nil, err
			}
		}
		if b[0]&0x7f == kind { // the highest bit: a client sent it
			return b, nil
		}
	}
	return nil, errors.New("the X server sends other events")
}

func (c *client) own(window uint32) error { return c.request(22, 0, window, c.clipboard, 0) }

func (c *client) owner() (uint32, error) {
	if err := c.request(23, 0, c.clipboard); err != nil {
		return 0, err
	}
	r, err := c.reply()
	if err != nil {
		return 0, err
	}
	return order.Uint32(r[8:]), nil
}

// read the clipboard's text; empty where nobody owns it or its owner has no text.
func (c *client) paste() (string, error) {
	owner, err := c.owner()
	if err != nil || owner == 0 {
		return "", err
	}
	if err := c.request(24, 0, c.window, c.clipboard, c.utf8, c.reading, 0); err != nil {
		return "", err
	}
	e, err := c.event(31)
	if err != nil {
		return "", err
	}
	if order.Uint32(e[20:]) == 0 { // refused
		return "", nil
	}
	if err := c.request(20, 1, c.window, c.reading, 0, 0, mostData/4-8); err != nil {
		return "", err
	}
	r, err := c.reply()
	if err != nil {
		return "", err
	}
	n := int(order.Uint32(r[16:]))
	if r[1] != 8 || n > len(r)-32 {
		return "", nil // no text
	}
	return string(r[32 : 32+n]), nil
}

// give answers one who asks: text for the two kinds of text, nothing for anything else.
func (c *client) give(e []byte, text string) error {
	requestor, target, property := order.Uint32(e[12:]), order.Uint32(e[20:]), order.Uint32(e[24:])
	if property == 0 {
		property = target
	}
	if target == c.utf8 || target == c.text {
		if err := c.requestText(18, 0, text, requestor, property, target, 8, uint32(len(text))); err != nil {
			return err
		}
	} else {
		property = 0
	}
	note := make([]byte, 32)
	note[0] = 31
	copy(note[4:], e[4:8])   // time
	copy(note[8:], e[12:24]) // requestor, selection, target
	order.PutUint32(note[20:], property)
	return c.requestText(25, 0, string(note), requestor, 0)
}

// clip is what this program holds in the clipboard.
var clip struct {
	sync.Mutex
	tokens []string
}

func holdClipboard(t token) error {
	clip.Lock()
	defer clip.Unlock()
	clip.tokens = append(clip.tokens, t.text)
	if len(clip.tokens) > 1 { // it has an owner
		return nil
	}
	c, err := dialX()
	if err != nil {
		return err
	}
	if err = c.own(c.window); err == nil {
		var owner uint32
		if owner, err = c.owner(); err == nil && owner != c.window {
			err = errors.New("somebody else owns the clipboard")
		}
	}
	if err == nil {
		err = unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{}) // whenever somebody asks
	}
	if err != nil {
		c.Close()
		return err
	}
	go func() {
		defer c.Close()
		for {
			e, err := c.event(30)
			if err != nil {
				return
			}
			clip.Lock()
			text := strings.Join(clip.tokens, " ")
			clip.Unlock()
			if c.give(e, text) != nil {
				return
			}
		}
	}()
	return nil
}

// pasted is the clipboard's text, asked for once.
var pasted = sync.OnceValues(func() (string, error) {
	c, err := dialX()
	if errors.Is(err, errNoDisplay) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer c.Close()
	return c.paste()
})

func seekClipboard(t token) (string, error) {
	text, err := pasted()
	if err != nil || !strings.Contains(text, t.text) {
		return "", err
	}
	return t.text, nil
}

// cleanClipboard empties a clipboard that somebody has kept the token for.
func cleanClipboard(t token) error {
	c, err := dialX()
	if errors.Is(err, errNoDisplay) {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Close()
	text, err := c.paste()
	if err != nil || !strings.Contains(text, t.text) {
		return err
	}
	if err := errors.Join(c.own(c.window), c.own(0)); err != nil {
		return err
	}
	_, err = c.owner() // it is done when the server answers
	return err
}
