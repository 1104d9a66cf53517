package main

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
)

// capture is a picture of the whole screen with its cursor, as a PNG. The X server
// takes the image in one piece, so it is one moment's; here it goes through row by
// row, and is never in memory as a whole.
func (c *connection) capture() ([]byte, error) {
	if c.width*c.height > proto.MaxPixels {
		return nil, fmt.Errorf("the screen has %dx%d pixels, more than %d", c.width, c.height, proto.MaxPixels)
	}
	fixes, err := c.extension("XFIXES")
	if err != nil {
		return nil, err
	}
	const pixmapFormat, allPlanes = 2, 1<<32 - 1
	err = c.send(
		newRequest(fixes, fixesQueryVersion, 4, 0),
		newRequest(fixes, fixesGetCursorImage),
		newRequest(opGetImage, pixmapFormat, uint32(c.root), 0, pair(c.width, c.height), allPlanes),
	)
	if err != nil {
		return nil, err
	}
	if _, err := c.receive(); err != nil {
		return nil, err
	}
	f, err := c.receive()
	if err != nil && !refusedWith(err, badCursor) { // it shows none
		return nil, err
	}
	var pointer *cursor
	if err == nil {
		if pointer, err = readCursor(f); err != nil {
			return nil, err
		}
	}
	head, size, err := c.head()
	if err != nil {
		return nil, err
	}
	l, err := c.setup.layout(head[1], binary.LittleEndian.Uint32(head[8:]), c.width)
	if err != nil {
		return nil, err
	}
	if size != int64(l.stride)*int64(c.height) {
		return nil, fmt.Errorf("%w: an image of %d bytes, want %d", errNonsense, size, l.stride*c.height)
	}
	return encode(c.width, c.height, func(y int, row []byte) error {
		if err := l.read(c.in, row); err != nil {
			return err
		}
		pointer.over(y, row)
		return nil
	})
}

// extension is the first byte of all its requests.
func (c *connection) extension(name string) (byte, error) {
	f, err := c.ask(newRequest(opQueryExtension, 0, uint32(len(name))).text(name))
	if err != nil {
		return 0, err
	}
	f.bytes(8)
	if present := f.u8(); present == 0 {
		return 0, errors.New("X server has no extension " + name)
	}
	return f.u8(), nil
}

// layout is how the server's images come: rows of so many bytes, pixels of 2 or 4.
type layout struct {
	stride, bytes int
	raw           []byte
}

func (s setup) layout(depth byte, id uint32, width int) (*layout, error) {
	format, visual := s.formats[depth], s.visuals[id]
	known := map[int]struct{ red, green, blue uint32 }{32: {0xff0000, 0xff00, 0xff}, 16: {0xf800, 0x7e0, 0x1f}}
	if want, ok := known[format.bits]; !ok || visual != want || format.pad < 8 || !s.littleEndian {
		return nil, fmt.Errorf("the screen has a depth of %d, %d bits a pixel and the masks %x, which is not known", depth, format.bits, visual)
	}
	l := &layout{bytes: format.bits / 8}
	l.stride = (width*format.bits + format.pad - 1) / format.pad * format.pad / 8
	l.raw = make([]byte, l.stride)
	return l, nil
}

// read reads the next row, as red, green and blue.
func (l *layout) read(in io.Reader, row []byte) error {
	if _, err := io.ReadFull(in, l.raw); err != nil {
		return err
	}
	for from := l.raw; len(row) > 0; row, from = row[3:], from[l.bytes:] {
		if l.bytes == 4 {
			row[0], row[1], row[2] = from[2], from[1], from[0]
			continue
		}
		v := binary.LittleEndian.Uint16(from)
		r, g, b := v>>11, v>>5&0x3f, v&0x1f
		row[0], row[1], row[2] = byte(r<<3|r>>2), byte(g<<2|g>>4), byte(b<<3|b>>2)
	}
	return nil
}

// cursor is the pointer's image and where it lies. Its pixels are blue, green,
// red and alpha, and multiplied by alpha already.
type cursor struct {
	left, top, width int
	pix              []byte
}

func readCursor(f *fields) (*cursor, error) {
	f.bytes(8)
	x, y := int(int16(f.u16())), int(int16(f.u16()))
	c := &cursor{width: int(f.u16())}
	height := int(f.u16())
	c.left, c.top = x-int(f.u16()), y-int(f.u16()) // less the hot spot, which is what points
	f.bytes(12)
	c.pix = f.bytes(4 * c.width * height)
	if *f.short {
		return nil, fmt.Errorf("%w: a cursor of %dx%d pixels", errNonsense, c.width, height)
	}
	return c, nil
}

// over lays the cursor's part in a row over it. A nil cursor is none.
func (c *cursor) over(y int, row []byte) {
	if c == nil || y < c.top || (y-c.top)*4*c.width >= len(c.pix) {
		return
	}
	own := c.pix[(y-c.top)*4*c.width:][:4*c.width]
	for x := max(0, -c.left); x < c.width && 3*(c.left+x) < len(row); x++ {
		p, under := own[4*x:], row[3*(c.left+x):]
		for i := range 3 {
			under[i] = byte(min(255, int(p[2-i])+(int(under[i])*(255-int(p[3]))+127)/255))
		}
	}
}

// encode writes a PNG of rows that come one by one, three bytes a pixel.
// https://www.w3.org/TR/png-3/
//
// image/png wants the whole picture in memory, and takes two and a half times as
// long: it tries each filter on each row, by which a screen, flat for the most part,
// does not get smaller.
func encode(width, height int, next func(y int, row []byte) error) ([]byte, error) {
	var data bytes.Buffer
	z, err := zlib.NewWriterLevel(&data, zlib.BestSpeed)
	if err != nil {
		return nil, err
	}
	const unfiltered = 0
	row := make([]byte, 1+3*width)
	for y := range height {
		row[0] = unfiltered
		if err := next(y, row[1:]); err != nil {
			return nil, err
		}
		if _, err := z.Write(row); err != nil {
			return nil, err
		}
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	const bits, truecolour = 8, 2
	header := binary.BigEndian.AppendUint32(nil, uint32(width))
	header = binary.BigEndian.AppendUint32(header, uint32(height))
	out := []byte("\x89PNG\r\n\x1a\n")
	out = chunk(out, "IHDR", append(header, bits, truecolour, 0, 0, 0))
	out = chunk(out, "IDAT", data.Bytes())
	return chunk(out, "IEND", nil), nil
}

func chunk(out []byte, kind string, data []byte) []byte {
	out = binary.BigEndian.AppendUint32(out, uint32(len(data)))
	from := len(out)
	out = append(append(out, kind...), data...)
	return binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(out[from:]))
}
