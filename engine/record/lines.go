package record

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// lineFile is a file that grows by whole lines, each a single write(2). It is
// not safe for concurrent use.
type lineFile struct {
	f    *os.File
	size int64
	buf  bytes.Buffer
	enc  *json.Encoder
	// broken: half a line is in the file and could not be cut off. Nothing may follow it.
	broken error
}

func openLines(path string, flag int) (*lineFile, error) {
	if err := own(path); err != nil {
		return nil, err
	}
	f, err := openCarefully(path, os.O_RDWR|os.O_APPEND|flag, 0o644)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	l := &lineFile{f: f, size: info.Size()}
	l.enc = json.NewEncoder(&l.buf)
	l.enc.SetEscapeHTML(false)
	return l, nil
}

// append writes v as one line and returns the line, without its line feed,
// valid until the next call. After an error the file is as it was.
func (l *lineFile) append(v any) ([]byte, error) {
	if l.broken != nil {
		return nil, l.broken
	}
	l.buf.Reset()
	if err := l.enc.Encode(v); err != nil { // with a line feed
		return nil, err
	}
	line := l.buf.Bytes()
	n, err := l.f.Write(line)
	if err != nil {
		if n > 0 {
			if cut := l.f.Truncate(l.size); cut != nil {
				l.broken = fmt.Errorf("the last line is torn: %w", cut)
			}
		}
		return nil, err
	}
	l.size += int64(n)
	return line[:len(line)-1], nil
}

// cut takes what is behind the first size bytes away.
func (l *lineFile) cut(size int64) error {
	if err := l.f.Truncate(size); err != nil {
		return err
	}
	l.size = size
	return nil
}

// close syncs to disk. Idempotent.
func (l *lineFile) close() error {
	if l.f == nil {
		return nil
	}
	err := errors.Join(l.f.Sync(), l.f.Close())
	l.f, l.broken = nil, os.ErrClosed
	return err
}

// eachLine calls f with each whole line of a file, counted from 1, without its
// line feed and valid for the call only, and returns how many bytes the whole
// lines are. ErrHuge for more lines than a run writes. torn is the number of a last line without a line feed, 0 if there is none.
func eachLine(path string, f func(number int, line []byte) error) (size int64, torn int, err error) {
	file, err := OpenRegular(path)
	if err != nil {
		return 0, 0, err
	}
	defer file.Close()
	in := bufio.NewReaderSize(file, 1<<16)
	var long []byte
	for number := 1; ; number++ {
		long = long[:0]
		line, err := in.ReadSlice('\n')
		for errors.Is(err, bufio.ErrBufferFull) {
			long = append(long, line...)
			line, err = in.ReadSlice('\n')
		}
		if len(long) > 0 {
			line = append(long, line...)
			long = line
		}
		switch {
		case errors.Is(err, io.EOF) && len(line) == 0:
			return size, 0, nil
		case errors.Is(err, io.EOF):
			return size, number, nil
		case err != nil:
			return size, 0, err
		}
		if number > maxLines {
			return size, 0, &fs.PathError{Op: "read", Path: path, Err: ErrHuge}
		}
		size += int64(len(line))
		if err := f(number, line[:len(line)-1]); err != nil {
			return size, 0, err
		}
	}
}
