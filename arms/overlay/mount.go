package overlay

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
)

// Options of one overlay. All paths are absolute.
type Options struct {
	// Lower directories, the topmost first; the image comes last.
	Lower []string
	// Upper and Work are empty directories on one file system, fresh for each
	// mount. Upper gets the mode, owner, attributes and times of the topmost lower
	// directory, since it is what the slot sees as "/".
	Upper, Work string
	// Target is the mount point.
	Target string
	// NFSExport gives the overlay file handles, without which CRIU walks the
	// whole tree for each inotify watch. It works with sealed layers too and
	// belongs on every slot, at provision and at restore alike.
	NFSExport bool
	// Volatile makes fsync in the slot, copy-up and unmount write nothing back:
	// quicker, and a crash of the host may lose what the slot wrote. The option
	// shows in the slot's mount table, so it must be the same at provision and
	// at restore.
	Volatile bool
}

// settings are the overlay options beside the directories, in the order in
// which they are given to the kernel. None is left to the module's defaults,
// which distributions change.
//
//	uuid=null             the same at dump and restore: st_dev and file handles do not name the overlay. Before
//	                      Linux 6.6 the option is unknown, and the only behaviour is what it asks for
//	index=on              hard links stay one inode over copy-up
//	nfs_export            see Options
//	metacopy=off          a copied-up file is complete, so that an upper means something alone
//	redirect_dir=nofollow a renamed directory is never a reference into a lower layer
//	xino=on               st_dev is one for the whole tree and st_ino survives copy-up
func (o Options) settings() [][2]string {
	nfs := "off"
	if o.NFSExport {
		nfs = "on"
	}
	s := [][2]string{
		{"uuid", "null"}, {"index", "on"}, {"nfs_export", nfs},
		{"metacopy", "off"}, {"redirect_dir", "nofollow"}, {"xino", "on"},
	}
	return s
}

// Mount mounts an overlay and reads its options back from mountinfo. Where the
// kernel gave less than was asked for (it drops options with a line in its log
// only), the overlay is taken away again and the error is ErrRefused. EBUSY
// (errors.Is) means that an upper, work or lower directory is in use as the
// upper or work directory of another overlay that still lives.
//
// Layers are handed over as file descriptors (Linux 6.13), else one string each
// (6.7), else in one option string of mount(2), which a page bounds.
func Mount(o Options) error {
	if err := o.check(); err != nil {
		return &engine.Error{Op: "mount overlay", Err: err}
	}
	if err := o.inherit(); err != nil {
		return &engine.Error{Op: "prepare upper directory", Err: err}
	}
	settings := o.settings()
	err := mountByFD(o)
	if errors.Is(err, errTooOld) {
		settings, err = mountByString(o, unix.Mount)
	}
	if err != nil {
		hint := ""
		if errors.Is(err, unix.EBUSY) {
			hint = "a directory is still the upper or work directory of a living overlay; its tree has not ended"
		}
		return &engine.Error{Op: "mount overlay", Err: fmt.Errorf("at %s: %w", o.Target, err), Hint: hint}
	}
	if err := o.readBack(settings); err != nil {
		if e := unix.Unmount(o.Target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); e != nil {
			err = errors.Join(err, fmt.Errorf("unmount %s: %w", o.Target, e))
		}
		return &engine.Error{Op: "mount overlay", Err: err, Hint: "the kernel's log says why it dropped an option"}
	}
	return nil
}

func (o Options) check() error {
	if len(o.Lower) == 0 {
		return fmt.Errorf("%w: no lower directory", engine.ErrUsage)
	}
	for _, p := range append([]string{o.Upper, o.Work, o.Target}, o.Lower...) {
		if !filepath.IsAbs(p) {
			return fmt.Errorf("%w: path %q is not absolute", engine.ErrUsage, p)
		}
	}
	for _, p := range []string{o.Upper, o.Work} {
		entries, err := os.ReadDir(p)
		if err != nil {
			return err
		}
		if len(entries) > 0 {
			return fmt.Errorf("%w: %s is not empty", engine.ErrRefused, p)
		}
	}
	return nil
}

// inherit makes the upper directory look like the root that it covers.
func (o Options) inherit() error {
	from, err := openRoot(o.Lower[0])
	if err != nil {
		return err
	}
	defer from.close()
	to, err := openRoot(o.Upper)
	if err != nil {
		return err
	}
	defer to.close()
	if err := to.copyMetadata(from); err != nil {
		return err
	}
	return to.resetTimes(from.st)
}

// errTooOld: the kernel lacks the new mount interface, or overlay's part in it.
var errTooOld = errors.New("kernel lacks fsconfig for overlay layers")

func mountByFD(o Options) error {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if errors.Is(err, unix.ENOSYS) {
		return errTooOld
	}
	if err != nil {
		return fmt.Errorf("open file system context: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigSetString(fs, "source", "overlay"); err != nil {
		return fmt.Errorf("set source: %w", err)
	}
	for i, dir := range o.Lower {
		if err := setLayer(fs, "lowerdir+", dir); err != nil {
			if i == 0 && tooOld(err) {
				return errTooOld
			}
			return err
		}
	}
	if err := setLayer(fs, "upperdir", o.Upper); err != nil {
		return err
	}
	if err := setLayer(fs, "workdir", o.Work); err != nil {
		return err
	}
	for _, s := range o.settings() {
		if err := unix.FsconfigSetString(fs, s[0], s[1]); err != nil {
			return fmt.Errorf("set %s=%s: %w%s", s[0], s[1], err, messages(fs))
		}
	}
	if o.Volatile {
		if err := unix.FsconfigSetFlag(fs, "volatile"); err != nil {
			return fmt.Errorf("set volatile: %w%s", err, messages(fs))
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return fmt.Errorf("create: %w%s", err, messages(fs))
	}
	mnt, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return fmt.Errorf("make mount: %w%s", err, messages(fs))
	}
	defer unix.Close(mnt)
	if err := unix.MoveMount(mnt, "", unix.AT_FDCWD, o.Target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	return nil
}

// tooOld says whether a kernel that refuses the first layer with err does not know
// lowerdir+: EINVAL where overlayfs has the new interface without it (6.5, 6.6),
// EOPNOTSUPP where it has only the old one behind the new (before, vfs_fsconfig_locked).
func tooOld(err error) bool { return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) }

// setLayer gives one directory, by descriptor where the kernel takes it.
func setLayer(fs int, key, dir string) error {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s %s: %w", key, dir, err)
	}
	defer unix.Close(fd)
	if err = unix.FsconfigSetFd(fs, key, fd); err == nil {
		return nil
	}
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EBADF) {
		return fmt.Errorf("set %s to %s: %w%s", key, dir, err, messages(fs))
	}
	if err = unix.FsconfigSetString(fs, key, dir); err != nil {
		return fmt.Errorf("set %s to %s: %w%s", key, dir, err, messages(fs))
	}
	return nil
}

// messages drains what the kernel says about a file system context.
func messages(fs int) string {
	var all []string
	buf := make([]byte, 4096)
	for {
		n, err := unix.Read(fs, buf)
		if err != nil || n <= 0 {
			break
		}
		all = append(all, strings.TrimSpace(string(buf[:n])))
	}
	if len(all) == 0 {
		return ""
	}
	return " (kernel: " + strings.Join(all, "; ") + ")"
}

// mountByString mounts with mount(2) and returns the settings that were given: all,
// or all but uuid where the kernel does not know that.
func mountByString(o Options, mount func(source, target, fstype string, flags uintptr, data string) error) ([][2]string, error) {
	settings := o.settings()
	options, err := o.optionString(settings)
	if err != nil {
		return nil, err
	}
	err = mount("overlay", o.Target, "overlay", unix.MS_NODEV, options)
	if errors.Is(err, unix.EINVAL) {
		older := slices.DeleteFunc(slices.Clone(settings), func(s [2]string) bool { return s[0] == "uuid" })
		if options, e := o.optionString(older); e == nil && mount("overlay", o.Target, "overlay", unix.MS_NODEV, options) == nil {
			return older, nil
		}
	}
	return settings, err
}

// optionString escapes what overlayfs takes for a separator (overlayfs.rst).
func (o Options) optionString(settings [][2]string) (string, error) {
	comma := strings.NewReplacer(`\`, `\\`, `,`, `\,`)
	colon := strings.NewReplacer(`\`, `\\`, `,`, `\,`, `:`, `\:`)
	var b strings.Builder
	b.WriteString("lowerdir=")
	for i, dir := range o.Lower {
		if i > 0 {
			b.WriteByte(':')
		}
		b.WriteString(colon.Replace(dir))
	}
	b.WriteString(",upperdir=" + comma.Replace(o.Upper) + ",workdir=" + comma.Replace(o.Work))
	for _, s := range settings {
		b.WriteString("," + s[0] + "=" + s[1])
	}
	if o.Volatile {
		b.WriteString(",volatile")
	}
	if b.Len() >= os.Getpagesize() {
		return "", fmt.Errorf("%w: %d layers need %d bytes of options, mount(2) takes less than a page; Linux 6.7 has no such bound",
			engine.ErrRefused, len(o.Lower), b.Len())
	}
	return b.String(), nil
}

// parameters of the overlay module hold the defaults, which mountinfo does not show.
const parameters = "/sys/module/overlay/parameters/"

// readBack compares the effective options with the settings that were given. A kernel
// that knows uuid but was not given it would show it only if it had another meaning.
func (o Options) readBack(settings [][2]string) error {
	info, err := mountAt(o.Target)
	if err != nil {
		return err
	}
	shown := map[string]string{}
	for _, opt := range strings.Split(info.VFSOptions, ",") {
		k, v, _ := strings.Cut(opt, "=")
		shown[k] = v
	}
	if have, there := shown["uuid"]; there && !slices.ContainsFunc(settings, func(s [2]string) bool { return s[0] == "uuid" }) {
		return fmt.Errorf("%w: the kernel mounted with uuid=%s, which it was not given", engine.ErrRefused, have)
	}
	for _, s := range settings {
		have, ok := shown[s[0]]
		if !ok {
			if have, err = defaultOf(s[0]); err != nil {
				return err
			}
		}
		if have != s[1] {
			if s[0] == "xino" && o.oneFileSystem() {
				continue // nothing to map: the kernel switches it off, and inode numbers are unique and stay
			}
			return fmt.Errorf("%w: the kernel mounted with %s=%s instead of %s", engine.ErrRefused, s[0], have, s[1])
		}
	}
	// The option got a new name, of which the old one is a synonym.
	_, volatile := shown["volatile"]
	if volatile = volatile || shown["fsync"] == "volatile"; volatile != o.Volatile {
		return fmt.Errorf("%w: the kernel mounted with volatile %t", engine.ErrRefused, volatile)
	}
	return nil
}

func (o Options) oneFileSystem() bool {
	var upper unix.Stat_t
	if err := unix.Stat(o.Upper, &upper); err != nil {
		return false
	}
	for _, dir := range o.Lower {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil || st.Dev != upper.Dev {
			return false
		}
	}
	return true
}

// defaultOf is the value of an option that mountinfo does not show: it shows
// only what differs from the module's parameter (ovl_show_options).
func defaultOf(option string) (string, error) {
	file := map[string]string{"index": "index", "nfs_export": "nfs_export", "metacopy": "metacopy", "xino": "xino_auto"}[option]
	if file == "" {
		return "the default", nil
	}
	data, err := os.ReadFile(parameters + file)
	if err != nil {
		return "", fmt.Errorf("%w: default of %s: %w", engine.ErrUnknown, option, err)
	}
	on := strings.TrimSpace(string(data)) == "Y"
	switch {
	case on && option == "xino":
		return "auto", nil
	case on:
		return "on", nil
	}
	return "off", nil
}

// mountAt finds the topmost mount at target in the calling thread's mount namespace.
func mountAt(target string) (*mountinfo.Info, error) {
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	target, err = filepath.EvalSymlinks(target)
	if err != nil {
		return nil, err
	}
	mounts, err := mountinfo.GetMountsFromReader(f, func(m *mountinfo.Info) (skip, stop bool) {
		return m.Mountpoint != target, false
	})
	if err != nil {
		return nil, err
	}
	// Later lines lie on top.
	if len(mounts) == 0 || mounts[len(mounts)-1].FSType != "overlay" {
		return nil, fmt.Errorf("%w: no overlay is mounted at %s", engine.ErrUnknown, target)
	}
	return mounts[len(mounts)-1], nil
}
