package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// A client of the X protocol that waits for the answer to what it asks, and for
// nothing else. The server at the other end is the slot's, which is to say anybody's:
// each length is bounded before it is believed, each exchange has a deadline, and
// nothing of it runs on after its request. Libraries that read ahead in goroutines of
// their own hang or take the process with them when a server says what it should not;
// this process is the slot's first.
//
// Source of every number here: X Window System Protocol, X11R7.7, appendix B, and
// X Fixes Extension 5.0. https://www.x.org/releases/X11R7.7/doc/
const (
	opGetWindowAttributes = 3
	opGetGeometry         = 14
	opQueryTree           = 15
	opInternAtom          = 16
	opGetProperty         = 20
	opSendEvent           = 25
	opQueryPointer        = 38
	opTranslate           = 40
	opGetInputFocus       = 43
	opGetImage            = 73
	opQueryExtension      = 98
	fixesQueryVersion     = 0
	fixesGetCursorImage   = 4

	atomNone    = 0
	atomWMName  = 39
	atomWMClass = 67

	messageError = 0
	messageReply = 1
	eventGeneric = 35
	eventClient  = 33

	badWindow   = 3
	badCursor   = 6
	badDrawable = 9
)

type (
	windowID uint32
	atom     uint32
)

// xError is what the server says of a request that it refused.
type xError struct{ code, op byte }

func (e *xError) Error() string {
	return fmt.Sprintf("request %d was refused by the X server with error %d", e.op, e.code)
}

// refusedWith says whether err is a refusal with one of the codes.
func refusedWith(err error, codes ...byte) bool {
	var e *xError
	return errors.As(err, &e) && bytes.IndexByte(codes, e.code) >= 0
}

var errNonsense = errors.New("nonsense from the X server")

// maxReply holds the largest reply that is kept in memory: a cursor of 512x512 pixels.
const maxReply = 1 << 20

// wire is one connection.
type wire struct {
	socket *net.UnixConn
	in     *bufio.Reader
	sent   uint16 // number of the last request that was sent
	read   uint16 // number of the last one that was answered
	silent bool   // the next one is answered by a refusal only
	short  bool   // a message ended before what it must hold
	setup  setup
}

// setup is what the server says of itself at first.
type setup struct {
	littleEndian bool
	formats      map[byte]format // by depth
	visuals      map[uint32]visual
	root         windowID
}

type (
	format struct{ bits, pad int }
	visual struct{ red, green, blue uint32 }
)

func dialX(socket string, deadline time.Time) (*wire, error) {
	dialer := net.Dialer{Deadline: deadline}
	conn, err := dialer.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	w := &wire{socket: conn.(*net.UnixConn), in: bufio.NewReaderSize(conn, 16<<10)}
	if err = w.socket.SetDeadline(deadline); err == nil {
		err = w.hello()
	}
	if err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// close returns once the server has hung up too: the end of our writing is the
// client's end for the server, the end of our reading its answer.
func (w *wire) close() error {
	err := w.socket.CloseWrite()
	if err == nil {
		_, err = io.Copy(io.Discard, w.in)
	}
	w.socket.Close()
	return err
}

// hello is the set-up: little-endian, version 11.0, no authority.
func (w *wire) hello() error {
	if _, err := w.socket.Write([]byte{'l', 0, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		return err
	}
	head := make([]byte, 8)
	if _, err := io.ReadFull(w.in, head); err != nil {
		return err
	}
	body := make([]byte, 4*int(binary.LittleEndian.Uint16(head[6:])))
	if _, err := io.ReadFull(w.in, body); err != nil {
		return err
	}
	f := &fields{b: body, short: &w.short}
	const failed, success = 0, 1
	switch head[0] {
	case failed:
		return fmt.Errorf("it refuses: %q", f.bytes(int(head[1])))
	case success:
	default:
		return errors.New("it wants an authority")
	}
	f.bytes(16) // release, ids that we would make, motion buffer
	vendor := int(f.u16())
	f.u16()
	roots, formats := int(f.u8()), int(f.u8())
	w.setup = setup{littleEndian: f.u8() == 0, formats: make(map[byte]format), visuals: make(map[uint32]visual)}
	f.bytes(9 + (vendor+3)&^3)
	for range formats {
		depth := f.u8()
		w.setup.formats[depth] = format{int(f.u8()), int(f.u8())}
		f.bytes(5)
	}
	if roots == 0 || w.short {
		return fmt.Errorf("%w: a set-up with %d screens in %d bytes", errNonsense, roots, len(body))
	}
	w.setup.root = windowID(f.u32())
	f.bytes(35)
	for range f.u8() {
		f.bytes(2)
		visuals := int(f.u16())
		f.bytes(4)
		for range visuals {
			id := f.u32()
			f.bytes(4)
			w.setup.visuals[id] = visual{f.u32(), f.u32(), f.u32()}
			f.bytes(4)
			if w.short {
				break
			}
		}
	}
	if w.short {
		return fmt.Errorf("%w: a set-up that ends early", errNonsense)
	}
	return nil
}

// fields takes a message apart. What lies beyond its end is zero, and sets short,
// which those of one wire share.
type fields struct {
	b     []byte
	short *bool
}

func (f *fields) bytes(n int) []byte {
	if n > len(f.b) {
		*f.short, f.b = true, nil
		return make([]byte, min(n, 4))
	}
	out := f.b[:n]
	f.b = f.b[n:]
	return out
}

func (f *fields) u8() byte    { return f.bytes(1)[0] }
func (f *fields) u16() uint16 { return binary.LittleEndian.Uint16(f.bytes(2)) }
func (f *fields) u32() uint32 { return binary.LittleEndian.Uint32(f.bytes(4)) }

// request is its bytes, in which the length is filled in when it is sent.
type request []byte

func newRequest(op, data byte, numbers ...uint32) request {
	r := request{op, data, 0, 0}
	for _, n := range numbers {
		r = binary.LittleEndian.AppendUint32(r, n)
	}
	return r
}

// text appends bytes and fills up to a whole word.
func (r request) text(s string) request {
	r = append(r, s...)
	return append(r, make([]byte, -len(r)&3)...)
}

// pair is two numbers of 16 bits in one of 32.
func pair(low, high int) uint32 { return uint32(uint16(low)) | uint32(uint16(high))<<16 }

func getProperty(w windowID, property atom, size int) request {
	const keep, anyType = 0, 0
	return newRequest(opGetProperty, keep, uint32(w), uint32(property), anyType, 0, uint32(size+3)/4)
}

// send sends requests.
func (w *wire) send(requests ...request) error {
	var out []byte
	for _, r := range requests {
		binary.LittleEndian.PutUint16(r[2:], uint16(len(r)/4))
		out = append(out, r...)
		w.sent++
	}
	_, err := w.socket.Write(out)
	return err
}

// head reads on to the answer to the next request, and returns the first 32 bytes
// of the reply and how many follow. A refusal is an xError.
func (w *wire) head() ([]byte, int64, error) {
	if w.read == w.sent {
		return nil, 0, errors.New("nothing was asked")
	}
	for {
		h := make([]byte, 32)
		if _, err := io.ReadFull(w.in, h); err != nil {
			return nil, 0, err
		}
		more := 4 * int64(binary.LittleEndian.Uint32(h[4:]))
		if kind := h[0] &^ 0x80; kind > messageReply {
			if kind != eventGeneric {
				continue // a change of the keyboard is told to everybody
			}
			if more > maxReply {
				return nil, 0, fmt.Errorf("%w: an event of %d bytes", errNonsense, more)
			}
			if _, err := io.CopyN(io.Discard, w.in, more); err != nil {
				return nil, 0, err
			}
			continue
		}
		number := binary.LittleEndian.Uint16(h[2:])
		if w.silent && number == w.read+2 {
			w.read++
		}
		w.silent = false
		if number != w.read+1 {
			return nil, 0, fmt.Errorf("%w: an answer to request %d, want %d", errNonsense, number, w.read+1)
		}
		w.read++
		if h[0] == messageError {
			return nil, 0, &xError{code: h[1], op: h[10]}
		}
		return h, more, nil
	}
}

// receive is the whole of the next reply.
func (w *wire) receive() (*fields, error) {
	h, more, err := w.head()
	if err != nil {
		return nil, err
	}
	if more > maxReply {
		return nil, fmt.Errorf("%w: a reply of %d bytes", errNonsense, more)
	}
	body := append(h, make([]byte, more)...)
	_, err = io.ReadFull(w.in, body[32:])
	return &fields{b: body, short: &w.short}, err
}

// ask sends one request and receives its reply.
func (w *wire) ask(r request) (*fields, error) {
	if err := w.send(r); err != nil {
		return nil, err
	}
	return w.receive()
}

// do sends a request that has no reply, and sees that it was not refused: the
// answer to another one comes after its own.
func (w *wire) do(r request) error {
	if err := w.send(r, newRequest(opGetInputFocus, 0)); err != nil {
		return err
	}
	w.silent = true
	_, err := w.receive()
	var no *xError
	if errors.As(err, &no) {
		if _, err := w.receive(); err != nil {
			return err
		}
	}
	return err
}

// askAll sends all requests at once: a round trip each would add up. refused is
// the first refusal; every answer is taken in any case, so the wire stays in order.
func (w *wire) askAll(requests ...request) (replies []*fields, refused, err error) {
	if err := w.send(requests...); err != nil {
		return nil, nil, err
	}
	for range requests {
		f, err := w.receive()
		var no *xError
		switch {
		case errors.As(err, &no):
			if refused == nil {
				refused = no
			}
			f = &fields{short: new(bool)}
		case err != nil:
			return nil, nil, err
		}
		replies = append(replies, f)
	}
	return replies, refused, nil
}

// property is the content of a window's property, whose elements have so many bits.
type property struct {
	bits  byte
	value []byte
	left  uint32 // bytes that were not asked for
}

func (f *fields) property() property {
	f.bytes(1)
	p := property{bits: f.u8()}
	f.bytes(10) // number, length, type
	p.left = f.u32()
	size := int64(f.u32()) * int64(p.bits) / 8
	f.bytes(12)
	if size > int64(len(f.b)) {
		*f.short = true
		return property{}
	}
	p.value = f.b[:size]
	return p
}

// numbers are the elements of a property of 32 bits; of any other, and of one that is absent, there are none.
func (p property) numbers() []uint32 {
	if p.bits != 32 {
		return nil
	}
	out := make([]uint32, 0, len(p.value)/4)
	for v := p.value; len(v) >= 4; v = v[4:] {
		out = append(out, binary.LittleEndian.Uint32(v))
	}
	return out
}

// octets are the bytes of a property of 8 bits, no more than most.
func (p property) octets(most int) string {
	if p.bits != 8 {
		return ""
	}
	return string(p.value[:min(len(p.value), most)])
}
