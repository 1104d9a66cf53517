package hostexec

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
)

// What is kept of a program: of each output, and of the files that it leaves.
const (
	outputLimit = 1 << 20
	fileLimit   = 16 << 20
	filesLimit  = 64 << 20
	filesCount  = 64
)

// capture keeps the first bytes of an output and reads on.
type capture struct {
	read, write *os.File
	kept        []byte
	more        bool
	done        chan error
}

func newCapture() (*capture, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	return &capture{read: r, write: w, done: make(chan error, 1)}, nil
}

// follow reads until the end, or until finish has it stop.
func (c *capture) follow() {
	go func() {
		buf := make([]byte, 32<<10)
		for {
			n, err := c.read.Read(buf)
			room := min(n, outputLimit-len(c.kept))
			c.kept = append(c.kept, buf[:room]...)
			c.more = c.more || room < n
			if err != nil {
				c.done <- err
				return
			}
		}
	}()
}

// finish waits for the end, which comes at once where nobody holds the output any more.
func (c *capture) finish() error {
	c.read.SetReadDeadline(time.Now().Add(drainTime))
	if err := <-c.done; errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: its group is empty, yet somebody still holds its output: a process has left the group", engine.ErrUnknown)
	}
	return nil
}

func (c *capture) close() {
	c.read.Close()
	c.write.Close()
}

// files reads what lies in dir, as far as it is regular and within the limits.
// Names are those of the folder itself: what is deeper counts as left out.
func files(dir string) (kept []engine.HostFile, leftOut int, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, 0, err
	}
	total := int64(0)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return nil, 0, err
		}
		if !info.Mode().IsRegular() || info.Size() > fileLimit || total+info.Size() > filesLimit || len(kept) == filesCount {
			leftOut++
			continue
		}
		f, err := os.OpenFile(filepath.Join(dir, e.Name()), os.O_RDONLY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return nil, 0, err
		}
		data := make([]byte, info.Size())
		n, err := f.ReadAt(data, 0)
		f.Close()
		if err != nil {
			return nil, 0, fmt.Errorf("read what it left: %s: %w", e.Name(), err)
		}
		total += int64(n)
		kept = append(kept, engine.HostFile{Name: e.Name(), Data: data[:n]})
	}
	return kept, leftOut, nil
}
