package initrd

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"time"

	"github.com/cavaliergopher/cpio"

	"github.com/drumsbench/drumsbench/engine"
)

// Build returns the initial ramdisk: guestd, the static program at that path, as
// /init, and the modules with all that they need, found below dir (an unpacked
// lib/modules/RELEASE). The same files give the same bytes. A module that the
// folder does not hold is an error: it would otherwise fail the boot.
func Build(guestd, dir string, modules []string) ([]byte, error) {
	const op = "make initial ramdisk"
	program, err := os.ReadFile(guestd)
	if err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	order, err := loadOrder(dir, modules)
	if err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	files := []file{{name: "/init", mode: 0o755, content: program}}
	for i, m := range order {
		content, err := os.ReadFile(m.path)
		if err != nil {
			return nil, &engine.Error{Op: op, Err: err}
		}
		files = append(files, file{name: fmt.Sprintf("/modules/%02d-%s.ko", i, m.name), mode: 0o644, content: content})
	}
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err == nil {
		err = errors.Join(write(z, files), z.Close())
	}
	if err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	return out.Bytes(), nil
}

type file struct {
	name    string
	mode    cpio.FileMode
	content []byte
}

// write writes an archive of files and the folders on their way, in the order of
// their names and with no times.
func write(w io.Writer, files []file) error {
	entries := map[string]file{}
	for _, f := range files {
		entries[path.Clean(f.name)] = f
		for dir := path.Dir(f.name); dir != "/"; dir = path.Dir(dir) {
			entries[dir] = file{name: dir, mode: cpio.TypeDir | 0o755}
		}
	}
	names := make([]string, 0, len(entries))
	for name := range entries {
		names = append(names, name)
	}
	slices.Sort(names)
	out := cpio.NewWriter(w)
	for _, name := range names {
		f := entries[name]
		h := &cpio.Header{Name: name[1:], Mode: f.mode, Links: 1, Size: int64(len(f.content)), ModTime: time.Unix(0, 0)}
		if f.mode&cpio.TypeDir != 0 {
			h.Links = 2
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := out.Write(f.content); err != nil {
			return err
		}
	}
	return out.Close()
}
