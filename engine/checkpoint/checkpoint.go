// Package checkpoint keeps sealed checkpoints: a folder with images, layers and
// a handle.
//
// Always holds: a file is hashed once, when it is sealed; afterwards its stat
// identity (device, inode, size, mtime, ctime) stands for its content, and any
// mismatch hashes it again. What a layer says without content (folders, links,
// whiteouts, modes, owners, attributes) is sealed as text. A checkpoint whose
// entries do not hold is refused before anything is restored, with the entry named.
package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/pathtext"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/wholefile"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// HandleFile is the handle's name in the checkpoint's folder.
const HandleFile = "handle.json"

// WorkingSetFile is a bench.WorkingSet, which may be written after the checkpoint was sealed. It is a hint to arms that
// fill memory while a slot runs: it decides when a page comes, never what is in it.
const WorkingSetFile = "working-set.json"

// Seal hashes every regular file below dir into the handle, notes the shape of
// every entry, writes the handle and makes it last. The handle's other fields are the caller's.
func Seal(ctx context.Context, dir string, h bench.Checkpoint) (engine.Checkpoint, error) {
	h.Files, h.Shapes = []bench.SealedFile{}, map[string]string{}
	err := entries(ctx, dir, func(rel, path string, d fs.DirEntry) (err error) {
		if h.Shapes[rel], err = shape(path); err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := seal(path)
		if err != nil {
			return err
		}
		f.Path = rel
		h.Files = append(h.Files, f)
		return nil
	})
	if err != nil {
		return engine.Checkpoint{}, &engine.Error{Op: "seal checkpoint", Err: err}
	}
	sort.Slice(h.Files, func(i, k int) bool { return h.Files[i].Path < h.Files[k].Path })
	b, err := json.MarshalIndent(h, "", "  ")
	if err != nil {
		return engine.Checkpoint{}, &engine.Error{Op: "seal checkpoint", Err: err}
	}
	if err := wholefile.Write(filepath.Join(dir, HandleFile), append(b, '\n'), 0o600); err != nil {
		return engine.Checkpoint{}, &engine.Error{Op: "seal checkpoint", Err: err}
	}
	return engine.Checkpoint{Dir: dir, Handle: h}, nil
}

// entries calls do with each entry below dir but the handle and the working set: rel is written as text.
func entries(ctx context.Context, dir string, do func(rel, path string, d fs.DirEntry) error) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || path == dir {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil || rel == HandleFile || rel == WorkingSetFile && d.Type().IsRegular() {
			return err
		}
		return do(pathtext.Quote(rel), path, d)
	})
}

// KeepScreen writes the picture of a guest's reference, if there is one, where Seal finds it.
func KeepScreen(dir string, ref engine.GuestReference) error {
	if ref.Screen == nil {
		return nil
	}
	if err := os.WriteFile(filepath.Join(dir, engine.ScreenFile), ref.Screen, 0o600); err != nil {
		return &engine.Error{Op: "keep picture of the screen", Err: err}
	}
	return nil
}

// Digest of a handle, as records carry it.
func Digest(h bench.Checkpoint) (bench.SHA256, error) { return canonical.Digest(h) }

// Open reads a checkpoint's handle; it verifies nothing but its form.
func Open(dir string) (engine.Checkpoint, error) {
	b, err := record.ReadRegular(filepath.Join(dir, HandleFile))
	if err != nil {
		return engine.Checkpoint{}, &engine.Error{Op: "open checkpoint", Err: err}
	}
	var h bench.Checkpoint
	if err := json.Unmarshal(b, &h); err != nil {
		return engine.Checkpoint{}, &engine.Error{Op: "open checkpoint " + dir, Err: err}
	}
	return engine.Checkpoint{Dir: dir, Handle: h}, nil
}

// Verify requires that every sealed entry is there as it was sealed and that
// none was added. It returns how many had to be hashed again.
func Verify(ctx context.Context, cp engine.Checkpoint) (hashed int, err error) {
	return inspect(ctx, cp, false, true, func(c Change) error {
		return &engine.Error{Op: "verify checkpoint", Err: fmt.Errorf("%w: %s %s", engine.ErrRefused, c.Path, c.Text),
			Hint:     "a checkpoint's files must stay as they were sealed; make a new checkpoint",
			Findings: []bench.Finding{{Verdict: engine.Fail, Subject: c.Path, Text: c.Text}}}
	})
}

func seal(path string) (bench.SealedFile, error) {
	f, err := openSealed(path)
	if err != nil {
		return bench.SealedFile{}, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return bench.SealedFile{}, err
	}
	// The identity after the read: a file that changes under it gets another ctime.
	id, err := identify(path)
	id.Sha256 = bench.SHA256(hex.EncodeToString(h.Sum(nil)))
	return id, err
}

// Compatible requires that each named fact of the handle equals the one of this
// host: a checkpoint is of one kernel, CPU and tool.
func Compatible(h bench.Checkpoint, host []bench.Fact, names ...string) error {
	find := func(list []bench.Fact, name string) bench.Fact {
		for _, f := range list {
			if f.Name == name {
				return f
			}
		}
		return bench.Fact{Name: name, Reason: "not recorded"}
	}
	e := &engine.Error{Op: "restore checkpoint", Hint: "make the checkpoint again on this host"}
	for _, name := range names {
		a, b := find(h.Facts, name), find(host, name)
		switch {
		case !a.Known || !b.Known:
			e.Findings = append(e.Findings, bench.Finding{Verdict: engine.VerdictUnknown, Subject: name, Text: "is not known on both sides", Want: a.Value + a.Reason, Have: b.Value + b.Reason})
		case a.Value != b.Value:
			e.Findings = append(e.Findings, bench.Finding{Verdict: engine.Fail, Subject: name, Text: "the checkpoint is of another " + name, Want: a.Value, Have: b.Value})
		}
	}
	if len(e.Findings) == 0 {
		return nil
	}
	f := e.Findings[0]
	e.Err = fmt.Errorf("%w: %s: %s (checkpoint %q, here %q)", engine.ErrRefused, f.Subject, f.Text, f.Want, f.Have)
	return e
}
