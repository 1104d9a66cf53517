package image

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// The ways in which an image becomes a block device.
const (
	// MethodRaw converts it once to a raw file in the cache, which a loop device shows. The fastest to read.
	MethodRaw = "raw"
	// MethodFuse has qemu-storage-daemon show it as a raw file, which a loop device shows. For images too large to convert.
	MethodFuse = "fuse"
	// MethodNBD has qemu-nbd show it as a block device. Only where the kernel has nbd.
	MethodNBD = "nbd"
)

// AttachOptions say which image to mount and how.
type AttachOptions struct {
	// Path of the image; Image.File is not looked at.
	Path string
	// Image gives the pin and the partition.
	Image bench.Image
	// Method is one of the constants above.
	Method string
	// CacheDir holds digests and raw files, and outlives the run.
	CacheDir string
	// Prepare is called for each program before it is started: it may add to
	// SysProcAttr, such as a cgroup to start in. nil for nothing.
	Prepare func(*exec.Cmd)
}

// Mounted is an image that is mounted read-only. It is an engine.Root.
type Mounted struct {
	dir      string
	options  AttachOptions
	verified Verified
	// raw is the raw file of MethodRaw with its digest.
	raw     string
	rawHash Digest
	facts   []bench.Fact
	ledger  engine.Ledger
	hashes  hashes
	// claim is what the run's things are called by: drums-ID.
	claim string

	mu   sync.Mutex
	held []held
	// adopted takes away what another process made; nil where this one did, and once it is gone.
	adopted func(context.Context) error
}

var (
	_ engine.Root   = (*Mounted)(nil)
	_ engine.Cached = (*Mounted)(nil)
)

// held is a thing of ours on the host. drop takes it away and returns nil only
// after it has read back that it is gone, or that it was never made.
type held struct {
	id   int64
	what string
	drop func(context.Context) error
}

// own writes the intent, makes the thing and binds its identity. The thing is
// held from the intent on: what make leaves behind when it fails is dropped too.
func (m *Mounted) own(kind string, claim bench.Claim, make func() (bench.Identity, error), drop func(context.Context) error) error {
	id, err := m.ledger.Intend(kind, claim)
	if err != nil {
		return err
	}
	m.held = append(m.held, held{id: id, what: kind + " " + claim.Path + claim.Backing, drop: drop})
	identity, err := make()
	if err != nil {
		return err
	}
	return m.ledger.Bind(id, identity)
}

// Attach compares the image with its pin and mounts its root file system
// read-only below ws.Work. Nothing of the image is parsed before the pin held.
// What was begun when an error came is taken away again.
//
// Needs root. ErrRefused: the pin does not hold, the image is no single qcow2,
// the partition or its file system is not there, the method is not available here.
func Attach(ctx context.Context, ws *engine.Workspace, o AttachOptions) (_ *Mounted, err error) {
	const op = "attach image"
	m := &Mounted{options: o, ledger: ws.Ledger, claim: "drums-" + ws.ID, hashes: hashes{filepath.Join(o.CacheDir, "digests")}}
	var attach func(context.Context, *os.File, string) (device, error)
	switch o.Method {
	case MethodRaw:
		attach = m.attachRaw
	case MethodFuse:
		attach = m.attachFuse
	case MethodNBD:
		attach = m.attachNBD
	default:
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("method %q: %w", o.Method, engine.ErrUsage), Hint: "raw, fuse or nbd"}
	}
	f, v, err := openVerified(ctx, o.Path, o.Image.Sha256, m.hashes, o.Prepare)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m.verified = v
	defer func() {
		if err != nil {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
			defer cancel()
			err = errors.Join(err, m.Release(undo))
		}
	}()

	place, err := m.makePlace(ws)
	if err != nil {
		return nil, err
	}
	dev, err := attach(ctx, f, place)
	if err != nil {
		return nil, err
	}
	if dev.close != nil {
		defer dev.close()
	}
	if err := m.mount(ctx, dev, filepath.Join(place, "root")); err != nil {
		return nil, err
	}
	m.facts = append(v.Facts(),
		engine.Known(o.Method, "the mechanism that was used", engine.ViewHost).Fact("image.attach"),
		engine.Known(dev.path, "/proc/self/mountinfo", engine.ViewHost).Fact("image.device"),
		engine.Known(o.Image.Partition, "the manifest", engine.ViewHost).Fact("image.partition"),
	)
	m.facts = append(m.facts, dev.facts...)
	return m, nil
}

// device is a block device that shows the root file system.
type device struct {
	path string
	// close lets go of our own descriptor once the device is mounted.
	close func() error
	facts []bench.Fact
}

// makePlace makes a folder of its own for the mount points.
func (m *Mounted) makePlace(ws *engine.Workspace) (string, error) {
	var name [6]byte
	rand.Read(name[:])
	place := filepath.Join(ws.Work, "image-"+hex.EncodeToString(name[:]))
	return place, m.ownDirectory(place)
}

func (m *Mounted) ownDirectory(path string) error {
	return m.own("directory", bench.Claim{Path: path}, func() (bench.Identity, error) {
		if err := os.Mkdir(path, 0o700); err != nil {
			return bench.Identity{}, &engine.Error{Op: "make mount point", Err: err}
		}
		return pathIdentity(path)
	}, func(context.Context) error { return removed(path) })
}

// removed removes a file or an empty folder and reads its absence back.
func removed(path string) error {
	const op = "remove mount point"
	if err := os.Remove(path); err != nil && !isMissing(err) {
		return &engine.Error{Op: op, Err: err}
	}
	if _, err := os.Lstat(path); !isMissing(err) {
		return &engine.Error{Op: op, Err: fmt.Errorf("%s is still there: %v", path, err)}
	}
	return nil
}

// Dir is the mount point of the root file system.
func (m *Mounted) Dir() string { return m.dir }

// CachePaths implements engine.Cached: the files of the mounted root file system,
// which are in memory as such, then the raw file below it. ErrRefused for other
// methods, whose programs keep what they read.
func (m *Mounted) CachePaths() ([]string, error) {
	if m.raw == "" {
		return nil, refuse("tell what a start reads of the image", `use attach: "raw"`, "a program shows the image, and keeps what it likes of it")
	}
	return []string{m.dir, m.raw}, nil
}

// Facts say what is mounted, how it was attached and which digests were cached.
func (m *Mounted) Facts() []bench.Fact { return m.facts }

// Verify compares the image with its pin again: by its stat identity, and by a
// new digest if that has changed. The raw file that the slots really read is
// checked the same way. ErrRefused if one is not what it was.
func (m *Mounted) Verify(ctx context.Context) error {
	const op = "verify image again"
	d, err := m.hashes.file(ctx, m.verified.Path)
	if isMissing(err) {
		return refuse(op, "a run's image must stay where it is", "%s is gone", m.verified.Path)
	}
	if err != nil {
		return err
	}
	if d.SHA256 != m.options.Image.Sha256 {
		return refuse(op, "the results of this run do not hold; find out who wrote to the image",
			"%s changed since it was mounted: sha256 %s, pinned %s", m.verified.Path, d.SHA256, m.options.Image.Sha256)
	}
	if m.raw == "" {
		return nil
	}
	if d, err = m.hashes.file(ctx, m.raw); err != nil {
		return err
	}
	if d.SHA256 != m.rawHash.SHA256 || d.Identity.Dev != m.rawHash.Identity.Dev || d.Identity.Ino != m.rawHash.Identity.Ino {
		return refuse(op, "the results of this run do not hold; find out who wrote to the cache",
			"the raw file %s changed or was replaced since it was mounted", m.raw)
	}
	return nil
}

// Release takes away what Attach made, last first: it unmounts (never lazily),
// waits until the loop device is clear, ends the daemon, removes the mount
// points, and reads each absence back before it calls the thing gone. Idempotent;
// after an error it can be called again and goes on where it stopped.
func (m *Mounted) Release(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.adopted != nil {
		if err := m.adopted(ctx); err != nil {
			return err
		}
		m.adopted = nil
	}
	for len(m.held) > 0 {
		last := m.held[len(m.held)-1]
		if err := last.drop(ctx); err != nil {
			return err
		}
		if err := m.ledger.Gone(last.id); err != nil {
			return err
		}
		m.held = m.held[:len(m.held)-1]
	}
	return nil
}

// poll calls done until it says true, an error comes or ctx ends. The period
// grows from one to twenty milliseconds.
func poll(ctx context.Context, op string, done func() (bool, error)) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return &engine.Error{Op: op, Err: context.Cause(ctx)}
		case <-time.After(wait):
		}
	}
}
