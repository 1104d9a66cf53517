package image

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// attachRaw shows the image through a raw copy in the cache and a loop device.
func (m *Mounted) attachRaw(ctx context.Context, image *os.File, _ string) (device, error) {
	raw, cached, err := m.rawFile(ctx, image)
	if err != nil {
		return device{}, err
	}
	defer raw.Close()
	// The file that was checked, not whatever has its name by now.
	if identity, err := identityOf(raw); err != nil || identity != m.rawHash.Identity {
		return device{}, &engine.Error{Op: "open raw file", Err: fmt.Errorf("%s changed while it was opened: %w (%v)", m.raw, engine.ErrUnknown, err)}
	}
	offset, size, err := partitionAt(raw, m.options.Image.Partition)
	if err != nil {
		return device{}, err
	}
	dev, err := m.attachLoop(ctx, raw, offset, size)
	if err != nil {
		return device{}, err
	}
	source := "sha256 of the whole file"
	if m.rawHash.Cached {
		source = "sha256 of an earlier time; device, inode, size, mtime and ctime are the same"
	}
	dev.facts = []bench.Fact{
		engine.Known(cached, "the cache of raw files", engine.ViewHost).Fact("image.raw.cached"),
		engine.Known(m.rawHash.SHA256, source, engine.ViewHost).Fact("image.raw.sha256"),
		engine.Known(m.rawHash.Cached, "stat", engine.ViewHost).Fact("image.raw.sha256.cached"),
	}
	return dev, nil
}

// rawRecord lies beside a raw file and is written after it.
type rawRecord struct {
	Raw bench.SHA256 `json:"raw"`
}

// rawFile returns the image's raw copy: the one in the cache if it is still what
// was made of this image, else a new one.
func (m *Mounted) rawFile(ctx context.Context, image *os.File) (_ *os.File, cached bool, err error) {
	const op = "make raw file"
	dir := filepath.Join(m.options.CacheDir, "raw")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, false, &engine.Error{Op: op, Err: err}
	}
	base := filepath.Join(dir, string(m.verified.Digest.SHA256))
	m.raw = base + ".raw"
	unlock, err := lockFile(ctx, base+".lock")
	if err != nil {
		return nil, false, err
	}
	defer unlock()

	f, err := m.cachedRaw(ctx, base)
	if f != nil || err != nil {
		return f, true, err
	}
	end := engine.StartSpan(ctx, "convert")
	defer end()
	if err := os.Remove(base + ".json"); err != nil && !isMissing(err) {
		return nil, false, &engine.Error{Op: op, Err: err}
	}
	partial := base + ".partial"
	defer os.Remove(partial)
	if err := m.qemuImg(ctx, op, image, "convert", "--force-share", "-f", "qcow2", "-O", "raw", passed(0), partial); err != nil {
		return nil, false, err
	}
	if err := m.qemuImg(ctx, "compare raw file with its image", image, "compare", "--force-share", "-f", "qcow2", "-F", "raw", passed(0), partial); err != nil {
		return nil, false, err
	}
	if err := os.Chmod(partial, 0o400); err != nil {
		return nil, false, &engine.Error{Op: op, Err: err}
	}
	if err := syncFile(partial); err != nil {
		return nil, false, &engine.Error{Op: op, Err: err}
	}
	if err := os.Rename(partial, m.raw); err != nil {
		return nil, false, &engine.Error{Op: op, Err: err}
	}
	if f, err = m.openRaw(ctx); err != nil {
		return nil, false, err
	}
	text, err := json.Marshal(rawRecord{Raw: m.rawHash.SHA256})
	if err == nil {
		err = renameio.WriteFile(base+".json", append(text, '\n'), 0o600, renameio.WithTempDir(dir))
	}
	if err != nil {
		f.Close()
		return nil, false, &engine.Error{Op: op, Err: err}
	}
	return f, false, nil
}

// cachedRaw returns the raw file of the cache if its digest is the recorded one; nil if not.
func (m *Mounted) cachedRaw(ctx context.Context, base string) (*os.File, error) {
	text, err := os.ReadFile(base + ".json")
	var record rawRecord
	if err != nil || json.Unmarshal(text, &record) != nil {
		return nil, nil // never finished, or damaged: made again
	}
	f, err := m.openRaw(ctx)
	if isMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if m.rawHash.SHA256 != record.Raw || m.rawHash.Identity.Size != m.verified.VirtualSize {
		f.Close()
		return nil, nil
	}
	return f, nil
}

// openRaw opens the raw file and fills in rawHash.
func (m *Mounted) openRaw(ctx context.Context) (*os.File, error) {
	f, err := os.Open(m.raw)
	if err != nil {
		return nil, &engine.Error{Op: "open raw file", Err: err}
	}
	if m.rawHash, err = m.hashes.of(ctx, f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (m *Mounted) qemuImg(ctx context.Context, op string, image *os.File, args ...string) error {
	cmd, err := command(ctx, "qemu-img", args...)
	if err != nil {
		return err
	}
	cmd.ExtraFiles = []*os.File{image}
	if m.options.Prepare != nil {
		m.options.Prepare(cmd)
	}
	_, err = output(ctx, op, cmd)
	return err
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
