package image

import (
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"os"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// isStatic says whether an ELF program needs no loader.
func isStatic(path string) (bool, error) {
	f, err := elf.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return false, nil
		}
	}
	return true, nil
}

// guestdInside reads the guest server back out of the file system and compares
// it with the one that was to go in.
func (b *build) guestdInside(ctx context.Context, raw string) (bench.SHA256, error) {
	const op = "read guestd back"
	content, err := os.ReadFile(b.Guestd)
	if err != nil {
		return "", &engine.Error{Op: op, Err: err}
	}
	want := sha256.Sum256(content)
	have, err := digestInside(ctx, raw, 0, GuestdPath)
	if err != nil {
		return "", err
	}
	if have != bench.SHA256(hex.EncodeToString(want[:])) {
		return "", &engine.Error{Op: op, Err: fmt.Errorf("the image holds another one: sha256 %s, wanted %x", have, want)}
	}
	return have, nil
}

// digestInside is the SHA-256 of a file in the ext4 file system that begins at
// offset of raw. Nothing is mounted. A file that is not there is ErrUnknown.
func digestInside(ctx context.Context, raw string, offset int64, path string) (bench.SHA256, error) {
	device := raw
	if offset > 0 {
		device = fmt.Sprintf("%s?offset=%d", raw, offset)
	}
	content, err := run(ctx, "read "+path+" in the image", "debugfs", "-R", `cat "`+path+`"`, device)
	if err != nil {
		return "", err
	}
	if len(content) == 0 { // debugfs exits 0 whatever its command did
		return "", &engine.Error{Op: "read " + path + " in the image", Err: fmt.Errorf("not there or empty: %w", engine.ErrUnknown)}
	}
	sum := sha256.Sum256(content)
	return bench.SHA256(hex.EncodeToString(sum[:])), nil
}
