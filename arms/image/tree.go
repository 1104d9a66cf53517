package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// GuestdPath is where an image of ours carries its guest server.
const GuestdPath = "/usr/local/bin/guestd"

// leftovers are what mmdebstrap leaves of the machine that it ran on: which
// archive, through which proxy.
var leftovers = []string{
	"/etc/apt/sources.list", "/etc/apt/sources.list.d", "/etc/apt/apt.conf.d/99mmdebstrap",
	"/var/cache/ldconfig/aux-cache", "/var/log/bootstrap.log",
}

// mountPoints are the folders that a slot mounts over or keeps its state in.
var mountPoints = []struct {
	path string
	mode fs.FileMode
}{
	{"/dev", 0o755}, {"/proc", 0o555}, {"/root", 0o700}, {"/run", 0o755}, {"/sys", 0o555}, {"/tmp", 0o777 | fs.ModeSticky},
}

// makeTree unpacks the tarball into dir and makes it the tree of the recipe.
// Everything below dir is reached through an os.Root: a link in a package
// cannot lead a write out of the tree.
func (b *build) makeTree(ctx context.Context, tar, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return &engine.Error{Op: "unpack root tree", Err: err}
	}
	if _, err := run(ctx, "unpack root tree", "tar", "--extract", "--file", tar, "--directory", dir,
		"--numeric-owner", "--preserve-permissions", "--xattrs", "--xattrs-include=*"); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return &engine.Error{Op: "open root tree", Err: err}
	}
	defer root.Close()
	if err := b.checkInstalled(root); err != nil {
		return err
	}
	for _, name := range append(leftovers[:len(leftovers):len(leftovers)], b.Recipe.Remove...) {
		if err := removeAll(root, name); err != nil {
			return err
		}
	}
	if err := b.lay(root); err != nil {
		return err
	}
	if err := b.runInside(ctx, dir); err != nil {
		return err
	}
	if err := b.layBoot(ctx, root, dir); err != nil {
		return err
	}
	return clampTimes(dir, b.Recipe.Epoch)
}

// lay puts the recipe's files, the guest server and what every slot needs into the tree.
func (b *build) lay(root *os.Root) error {
	for _, point := range mountPoints {
		if err := mkdirAll(root, inTree(point.path)); err != nil {
			return err
		}
		if err := root.Chmod(inTree(point.path), point.mode); err != nil {
			return &engine.Error{Op: "lay out tree", Err: err}
		}
	}
	// mmdebstrap copied these from the machine; a file of the recipe may replace them again.
	for name, content := range map[string]string{"/etc/hostname": string(b.Recipe.Name) + "\n", "/etc/resolv.conf": ""} {
		if err := removeAll(root, name); err != nil {
			return err
		}
		if err := writeFile(root, name, 0o644, strings.NewReader(content)); err != nil {
			return err
		}
	}
	sources, err := os.OpenRoot(b.Dir)
	if err != nil {
		return &engine.Error{Op: "open folder of the recipe", Err: err}
	}
	defer sources.Close()
	neighbours, err := os.OpenRoot(filepath.Join(b.Dir, ".."))
	if err != nil {
		return &engine.Error{Op: "open folder of the recipe's neighbours", Err: err}
	}
	defer neighbours.Close()
	for _, file := range b.Recipe.Files {
		from := sources
		if rest, ok := strings.CutPrefix(file.Source, "../"); ok {
			from, file.Source = neighbours, rest
		}
		if err := layFile(root, from, file); err != nil {
			return err
		}
	}
	guestd, err := os.Open(b.Guestd)
	if err != nil {
		return &engine.Error{Op: "open guestd", Err: err}
	}
	defer guestd.Close()
	return writeFile(root, GuestdPath, 0o755, guestd)
}

// runInside runs the recipe's commands with the tree as their root, where they see no process, no
// network and no mount of the machine, and end with the build.
func (b *build) runInside(ctx context.Context, dir string) error {
	for _, argv := range b.Recipe.Run {
		cmd, err := command(ctx, "unshare", append([]string{
			"--fork", "--pid", "--kill-child", "--mount", "--net", "--ipc", "--uts", "--root=" + dir, "--wd=/", "--",
		}, argv...)...)
		if err != nil {
			return err
		}
		// Nothing of the machine's: a home or a proxy must not decide what a command leaves.
		cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "TZ=UTC", fmt.Sprintf("SOURCE_DATE_EPOCH=%d", b.Recipe.Epoch)}
		if _, err := output(ctx, fmt.Sprintf("run %q in the tree", argv), cmd); err != nil {
			return err
		}
	}
	return nil
}

func layFile(root, sources *os.Root, file bench.RecipeFile) error {
	op := "lay file " + string(file.Path)
	mode, err := strconv.ParseUint(file.Mode, 8, 12)
	if err != nil {
		return &engine.Error{Op: op, Err: fmt.Errorf("mode %q: %w: %w", file.Mode, err, engine.ErrUsage)}
	}
	if file.Source == "" {
		return writeFile(root, string(file.Path), fs.FileMode(mode), strings.NewReader(file.Content))
	}
	if file.Content != "" {
		return &engine.Error{Op: op, Err: fmt.Errorf("content and source exclude each other: %w", engine.ErrUsage)}
	}
	f, err := sources.Open(file.Source)
	if err != nil {
		return &engine.Error{Op: op, Err: fmt.Errorf("%w: %w", err, engine.ErrUsage), Hint: "a source lies beside the recipe, in its folder or below, or in a neighbour's: ../NEIGHBOUR/FILE"}
	}
	defer f.Close()
	return writeFile(root, string(file.Path), fs.FileMode(mode), f)
}

// inTree is the path of a guest path relative to the tree.
func inTree(guest string) string {
	return strings.TrimPrefix(path.Clean("/"+guest), "/")
}

func removeAll(root *os.Root, guest string) error {
	name := inTree(guest)
	if name == "" {
		return &engine.Error{Op: "remove from tree", Err: fmt.Errorf("%q is the whole tree: %w", guest, engine.ErrUsage)}
	}
	if err := root.RemoveAll(name); err != nil {
		return &engine.Error{Op: "remove from tree", Err: err}
	}
	return nil
}

// mkdirAll makes a folder and its parents with mode 0755 whatever the umask is.
func mkdirAll(root *os.Root, name string) error {
	const op = "lay out tree"
	var parent string
	for element := range strings.SplitSeq(name, "/") {
		parent = path.Join(parent, element)
		err := root.Mkdir(parent, 0o755)
		if errors.Is(err, fs.ErrExist) {
			if info, err := root.Stat(parent); err != nil || !info.IsDir() {
				return &engine.Error{Op: op, Err: fmt.Errorf("/%s is no folder", parent)}
			}
			continue
		}
		if err == nil {
			err = root.Chmod(parent, 0o755)
		}
		if err != nil {
			return &engine.Error{Op: op, Err: err}
		}
	}
	return nil
}

// writeFile makes a file of root's, in place of one that may be there. A link in
// its place is replaced, not followed.
func writeFile(root *os.Root, guest string, mode fs.FileMode, content io.Reader) (err error) {
	op := "write " + guest
	name := inTree(guest)
	if dir := path.Dir(name); dir != "." {
		if err := mkdirAll(root, dir); err != nil {
			return err
		}
	}
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &engine.Error{Op: op, Err: err}
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	_, err = io.Copy(f, content)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	return nil
}

// clampTimes brings every time in the tree that is later than the recipe's epoch
// back to it, what was laid just now included, and drops nanoseconds.
func clampTimes(dir string, epoch int64) error {
	err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var stat unix.Stat_t
		if err := unix.Lstat(name, &stat); err != nil {
			return &os.PathError{Op: "lstat", Path: name, Err: err}
		}
		mtime := unix.Timespec{}
		mtime.Sec = stat.Mtim.Sec
		if int64(mtime.Sec) > epoch { //nolint:unconvert // 32 bits on some machines
			mtime = unix.NsecToTimespec(epoch * 1e9)
		}
		times := []unix.Timespec{unix.NsecToTimespec(epoch * 1e9), mtime}
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, name, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return &os.PathError{Op: "utimensat", Path: name, Err: err}
		}
		return nil
	})
	if err != nil {
		return &engine.Error{Op: "clamp times", Err: err}
	}
	return nil
}

// checkInstalled reads dpkg's status back and compares it with what was resolved.
func (b *build) checkInstalled(root *os.Root) error {
	const op = "read installed packages back"
	text, err := root.ReadFile("var/lib/dpkg/status")
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	installed := map[string]string{}
	for stanza := range strings.SplitSeq(string(text), "\n\n") {
		field := map[string]string{}
		for line := range strings.Lines(stanza) {
			if key, value, ok := strings.Cut(line, ": "); ok && !strings.HasPrefix(key, " ") {
				field[key] = strings.TrimSpace(value)
			}
		}
		if field["Status"] == "install ok installed" {
			installed[field["Package"]] = field["Version"]
		} else if field["Package"] != "" {
			return &engine.Error{Op: op, Err: fmt.Errorf("package %s is %q", field["Package"], field["Status"])}
		}
	}
	var wrong []string
	for _, p := range b.packages {
		if installed[p.Name] != p.Version {
			wrong = append(wrong, fmt.Sprintf("%s is %q, resolved was %q", p.Name, installed[p.Name], p.Version))
		}
		delete(installed, p.Name)
	}
	for name, version := range installed {
		wrong = append(wrong, fmt.Sprintf("%s %s was not resolved", name, version))
	}
	if len(wrong) > 0 {
		return &engine.Error{Op: op, Err: errors.New(strings.Join(wrong, "; ")), Hint: "if the archive changed while this ran, run it again"}
	}
	return nil
}
