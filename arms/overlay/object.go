package overlay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
)

// object is one inode, held by a descriptor that neither opens a device nor
// follows a link (O_PATH), so that what is read of it is of one thing whatever
// happens to its name.
type object struct {
	fd int
	st unix.Stat_t
}

// openObject opens the name in dir. It gives nil where there is none.
func openObject(dir int, name string) (*object, error) {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", name, err)
	}
	o := &object{fd: fd}
	if err := unix.Fstat(fd, &o.st); err != nil {
		o.close()
		return nil, fmt.Errorf("stat %q: %w", name, err)
	}
	return o, nil
}

func openRoot(path string) (*object, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	o := &object{fd: fd}
	if err := unix.Fstat(fd, &o.st); err != nil {
		o.close()
		return nil, fmt.Errorf("stat %s: %w", path, err)
	}
	return o, nil
}

func (o *object) close() {
	if o != nil {
		unix.Close(o.fd)
	}
}

func (o *object) format() uint32 { return o.st.Mode & unix.S_IFMT }

func (o *object) isDir() bool { return o != nil && o.format() == unix.S_IFDIR }

// names of a directory, in no order.
func (o *object) names() ([]string, error) {
	f, err := os.OpenFile(selfFD(o.fd), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// target of a symbolic link.
func (o *object) target() (string, error) {
	for size := 256; ; size *= 2 {
		buf := make([]byte, size)
		n, err := unix.Readlinkat(o.fd, "", buf)
		if err != nil {
			return "", err
		}
		if n < size {
			return string(buf[:n]), nil
		}
	}
}

// xattrs reads all extended attributes, through /proc since an O_PATH
// descriptor has no calls of its own for them.
func (o *object) xattrs() (map[string]string, error) {
	path := selfFD(o.fd)
	list, err := growing(func(buf []byte) (int, error) { return unix.Listxattr(path, buf) })
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list xattrs: %w", err)
	}
	out := map[string]string{}
	for _, name := range strings.Split(string(bytes.TrimSuffix(list, []byte{0})), "\x00") {
		if name == "" {
			continue
		}
		value, err := growing(func(buf []byte) (int, error) { return unix.Getxattr(path, name, buf) })
		if err != nil {
			return nil, fmt.Errorf("read xattr %s: %w", name, err)
		}
		out[name] = string(value)
	}
	return out, nil
}

// xattr reads one attribute; "" and false where it is not set.
func (o *object) xattr(name string) (string, bool, error) {
	value, err := growing(func(buf []byte) (int, error) { return unix.Getxattr(selfFD(o.fd), name, buf) })
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("read xattr %s: %w", name, err)
	}
	return string(value), true, nil
}

func growing(read func([]byte) (int, error)) ([]byte, error) {
	for size := 512; size <= 1<<20; size *= 4 {
		buf := make([]byte, size)
		n, err := read(buf)
		if errors.Is(err, unix.ERANGE) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return buf[:n], nil
	}
	return nil, fmt.Errorf("%w: more than a mebibyte", engine.ErrUnknown)
}

// The marks of overlayfs on what lies in an upper or lower directory (overlayfs.rst).
const (
	overlayPrefix   = "trusted.overlay."
	escapedPrefix   = "trusted.overlay.overlay."
	overlayOpaque   = "trusted.overlay.opaque"
	overlayWhiteout = "trusted.overlay.whiteout"
	overlayMetacopy = "trusted.overlay.metacopy"
	overlayRedirect = "trusted.overlay.redirect"
	overlayOrigin   = "trusted.overlay.origin"
	overlayNlink    = "trusted.overlay.nlink"
	overlayProtattr = "trusted.overlay.protattr"
)

// isOpaque: nothing below shows through the directory. Opaque "x" marks a
// directory that holds whiteouts by attribute and hides nothing.
func (o *object) isOpaque() (bool, error) {
	v, _, err := o.xattr(overlayOpaque)
	return v == "y", err
}

// isWhiteout: a character device 0/0, or an empty file with the attribute
// (ovl_path_is_whiteout; the lookup does not ask for the mark on the directory).
func (o *object) isWhiteout() (bool, error) {
	switch o.format() {
	case unix.S_IFCHR:
		return o.st.Rdev == 0, nil
	case unix.S_IFREG:
		if o.st.Size != 0 {
			return false, nil
		}
		_, ok, err := o.xattr(overlayWhiteout)
		return ok, err
	}
	return false, nil
}

// openPath opens one path of ours, whatever it is.
func openPath(path string) (*object, error) {
	o, err := openObject(unix.AT_FDCWD, path)
	if err == nil && o == nil {
		err = fmt.Errorf("open %s: %w", path, unix.ENOENT)
	}
	return o, err
}

// lookup walks down from a root without following links; nil where there is nothing.
func (o *object) lookup(path string) (*object, error) {
	dir := o
	for _, part := range strings.Split(strings.Trim(path, "/"), "/") {
		next, err := openObject(dir.fd, part)
		if dir != o {
			dir.close()
		}
		if err != nil || next == nil {
			return nil, err
		}
		dir = next
	}
	return dir, nil
}

// copyMetadata gives o the owner, mode and extended attributes of from, without overlay's own marks.
func (o *object) copyMetadata(from *object) error {
	xattrs, err := from.xattrs()
	if err != nil {
		return err
	}
	err = errors.Join(
		unix.Fchownat(o.fd, "", int(from.st.Uid), int(from.st.Gid), unix.AT_EMPTY_PATH),
		unix.Fchmodat(unix.AT_FDCWD, selfFD(o.fd), from.st.Mode&0o7777, 0),
	)
	for name, value := range xattrs {
		if !strings.HasPrefix(name, overlayPrefix) || strings.HasPrefix(name, escapedPrefix) {
			err = errors.Join(err, unix.Setxattr(selfFD(o.fd), name, []byte(value), 0))
		}
	}
	return err
}

func (o *object) resetTimes(st unix.Stat_t) error {
	return unix.UtimesNanoAt(unix.AT_FDCWD, selfFD(o.fd), []unix.Timespec{st.Atim, st.Mtim}, 0)
}

// uuid of the file system that o lies on, as overlayfs writes it into file handles.
func (o *object) uuid() ([16]byte, error) {
	// struct fsuuid2 of FS_IOC_GETFSUUID, Linux 6.9.
	var answer struct {
		len  uint8
		uuid [16]byte
	}
	fd, err := unix.Open(selfFD(o.fd), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return answer.uuid, err
	}
	defer unix.Close(fd)
	const getFSUUID = 0x80111500
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), getFSUUID, uintptr(unsafe.Pointer(&answer))); errno != 0 {
		return answer.uuid, fmt.Errorf("ask for the file system's uuid: %w", errno)
	}
	if answer.len != 16 {
		return answer.uuid, fmt.Errorf("%w: file system uuid of %d bytes", engine.ErrUnknown, answer.len)
	}
	return answer.uuid, nil
}

// hasUUID compares the file system's uuid. Before Linux 6.9 statfs tells of it
// on ext4 alone, folded into one word (ext4_statfs), which is enough to tell two
// file systems apart but not to trust one of another kind.
func (o *object) hasUUID(want [16]byte) (bool, error) {
	have, err := o.uuid()
	if err == nil || !errors.Is(err, unix.ENOTTY) {
		return have == want, err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(selfFD(o.fd), &st); err != nil {
		return false, err
	}
	if st.Type != unix.EXT4_SUPER_MAGIC {
		return false, fmt.Errorf("%w: the kernel tells no uuid of file system type %x", engine.ErrUnknown, st.Type)
	}
	folded := binary.LittleEndian.Uint64(want[:8]) ^ binary.LittleEndian.Uint64(want[8:])
	return uint64(uint32(st.Fsid.Val[0]))|uint64(uint32(st.Fsid.Val[1]))<<32 == folded, nil
}
