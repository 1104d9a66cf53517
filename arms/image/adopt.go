package image

import (
	"context"
	"path/filepath"
	"strconv"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Adopted says where another process of the same run mounted an image, with the
// identities that the ledger has.
type Adopted struct {
	// Dir is the mount point.
	Dir string
	// Mount is the identity of what is mounted there.
	Mount bench.Identity
	// Device is the block device; Loop is its identity if it is a loop device, else nil.
	Device string
	Loop   *bench.Identity
	// Drop takes all of it away; nil where only sweep may.
	Drop func(context.Context) error
}

// Adopt takes over an image that another process mounted. It makes nothing and
// compares everything: the image with its pin, the raw file with the loop device
// that shows it, the mount with what the ledger means. ErrRefused if one is not
// what it was.
//
// Release of the result is a.Drop; without one it refuses: sweep takes away what the
// ledger owns.
func Adopt(ctx context.Context, o AttachOptions, a Adopted) (*Mounted, error) {
	const op = "adopt image"
	m := &Mounted{dir: a.Dir, options: o, hashes: hashes{filepath.Join(o.CacheDir, "digests")}}
	d, err := m.hashes.file(ctx, o.Path)
	if isMissing(err) {
		return nil, refuse(op, "a slot's image must stay where it is", "%s is gone", o.Path)
	}
	if err != nil {
		return nil, err
	}
	if d.SHA256 != o.Image.Sha256 {
		return nil, refuse(op, "release the slot; find out who wrote to the image", "%s changed since it was mounted: sha256 %s, pinned %s", o.Path, d.SHA256, o.Image.Sha256)
	}
	m.verified = Verified{Path: o.Path, Digest: d}
	if o.Method == MethodRaw {
		m.raw = filepath.Join(o.CacheDir, "raw", string(d.SHA256)+".raw")
		if m.rawHash, err = m.hashes.file(ctx, m.raw); err != nil {
			return nil, err
		}
	}
	if err := m.shows(a); err != nil {
		return nil, err
	}
	have, err := pathIdentity(a.Dir)
	if err != nil {
		return nil, err
	}
	if have != a.Mount {
		return nil, refuse(op, "release the slot", "%s is not what was mounted there", a.Dir)
	}
	if err := checkReadOnly(a.Dir, a.Device); err != nil {
		return nil, refuse(op, "release the slot", "%v", err)
	}
	m.facts = []bench.Fact{
		engine.Known(d.SHA256, "sha256 of the whole file, or of an earlier time and the same identity", engine.ViewHost).Fact("image.sha256"),
		engine.Known(o.Method, "the slot's handle", engine.ViewHost).Fact("image.attach"),
		engine.Known(a.Device, "/proc/self/mountinfo", engine.ViewHost).Fact("image.device"),
	}
	m.adopted = a.Drop
	if m.adopted == nil {
		m.adopted = func(context.Context) error {
			return refuse("release image", "drumsbench sweep takes away what the ledger owns", "another process mounted it")
		}
	}
	return m, nil
}

// shows requires that the loop device still shows the file that it was made for.
func (m *Mounted) shows(a Adopted) error {
	const op = "adopt image"
	if a.Loop == nil {
		return nil
	}
	var backing Identity
	var derr, ierr error
	backing.Dev, derr = strconv.ParseUint(string(a.Loop.Dev), 10, 64)
	backing.Ino, ierr = strconv.ParseUint(string(a.Loop.Ino), 10, 64)
	if derr != nil || ierr != nil {
		return refuse(op, "release the slot", "loop device %s has no identity in the ledger", a.Device)
	}
	if m.raw != "" && (backing.Dev != m.rawHash.Identity.Dev || backing.Ino != m.rawHash.Identity.Ino) {
		return refuse(op, "release the slot", "the raw file %s was replaced since it was attached", m.raw)
	}
	ours, err := loopShows(a.Device, backing)
	if err != nil {
		return err
	}
	if !ours {
		return refuse(op, "release the slot", "%s does not show the image any more", a.Device)
	}
	return nil
}
