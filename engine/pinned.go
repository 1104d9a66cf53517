package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// ReadPinned reads a file beside the manifest, which lies in dir, and compares
// what it read with the pin: what it returns is what was pinned. At most limit
// bytes. ErrRefused where it is another file, too large, not beside the manifest
// or not a regular file.
func ReadPinned(dir string, p bench.PinnedFile, limit int64) ([]byte, error) {
	op := "read pinned file " + p.File
	refused := func(format string, args ...any) error {
		return &Error{Op: op, Err: fmt.Errorf("%w: %s", ErrRefused, fmt.Sprintf(format, args...)), Hint: "pin the file that lies beside the manifest: sha256sum " + p.File}
	}
	if !filepath.IsLocal(p.File) {
		return nil, refused("it does not lie beside the manifest")
	}
	f, err := os.OpenFile(filepath.Join(dir, p.File), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	var path *os.PathError
	if errors.As(err, &path) { // whose name is Op's, and whose folder is the caller's business
		err = path.Err
	}
	if err != nil {
		return nil, refused("%v", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is not a regular file")
	}
	if err != nil {
		return nil, refused("%v", err)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, &Error{Op: op, Err: err}
	}
	if int64(len(data)) > limit {
		return nil, refused("it is larger than %d bytes", limit)
	}
	sum := sha256.Sum256(data)
	if have := bench.SHA256(hex.EncodeToString(sum[:])); have != p.Sha256 {
		return nil, refused("it has sha256 %s, the pin is %s", have, p.Sha256)
	}
	return data, nil
}
