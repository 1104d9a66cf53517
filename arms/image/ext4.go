package image

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
)

// features of the file system, in full: the machine's own mke2fs.conf must not
// decide. There is no journal: an image is never written, and a VM boots it
// under an overlay that it throws away.
const features = "none,ext_attr,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum"

// makeFilesystem makes an ext4 file system of dir in the file raw. The bytes
// depend on the tree, the recipe and e2fsprogs alone.
func (b *build) makeFilesystem(ctx context.Context, dir, raw string, size int64) error {
	const op = "make file system"
	f, err := os.OpenFile(raw, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	if err := f.Truncate(size); err != nil {
		f.Close()
		return &engine.Error{Op: op, Err: err}
	}
	if err := f.Close(); err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	// Nothing is left to be initialised later: a guest's kernel would do that while it is measured.
	if _, err := b.e2(ctx, op, "mke2fs", "-q", "-F", "-b", "4096", "-I", "256", "-i", "16384", "-m", "0", "-O", features,
		"-U", b.Recipe.Uuid, "-E", "hash_seed="+b.Recipe.Uuid+",lazy_itable_init=0,root_owner=0:0,nodiscard",
		"-d", dir, raw); err != nil {
		var e *engine.Error
		if errors.As(err, &e) && strings.Contains(e.Error(), "Could not allocate") {
			e.Hint = "raise size in the recipe, or remove more"
		}
		return err
	}
	if err := b.resetTimes(ctx, raw); err != nil {
		return err
	}
	_, err = b.e2(ctx, "check file system", "e2fsck", "-f", "-n", raw)
	return err
}

// e2 runs a program of e2fsprogs whose clock stands at the recipe's epoch.
func (b *build) e2(ctx context.Context, op, name string, args ...string) ([]byte, error) {
	cmd, err := command(ctx, name, args...)
	if err != nil {
		return nil, err
	}
	epoch := strconv.FormatInt(b.Recipe.Epoch, 10)
	cmd.Env = append(cmd.Env, "MKE2FS_CONFIG=/dev/null", "E2FSCK_CONFIG=/dev/null", "MKE2FS_SYNC=0",
		"SOURCE_DATE_EPOCH="+epoch, "E2FSPROGS_FAKE_TIME="+epoch)
	return output(ctx, op, cmd)
}

// resetTimes sets the times that mke2fs took from the scratch folder and that
// nobody can set there: each inode's ctime, and the atime beside it.
func (b *build) resetTimes(ctx context.Context, raw string) error {
	const op = "reset times"
	layout, err := b.e2(ctx, op, "dumpe2fs", raw)
	if err != nil {
		return err
	}
	inodes, err := usedInodes(layout)
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	var set, read bytes.Buffer
	for _, inode := range inodes {
		for _, field := range []string{"atime", "ctime", "crtime"} {
			fmt.Fprintf(&set, "set_inode_field <%d> %s @%d\nset_inode_field <%d> %s_extra 0\n", inode, field, b.Recipe.Epoch, inode, field)
		}
		fmt.Fprintf(&set, "set_inode_field <%d> mtime_extra 0\n", inode)
		fmt.Fprintf(&read, "stat <%d>\n", inode)
	}
	for name, script := range map[string]*bytes.Buffer{"set": &set, "read": &read} {
		if err := os.WriteFile(filepath.Join(b.scratch, "debugfs."+name), script.Bytes(), 0o600); err != nil {
			return &engine.Error{Op: op, Err: err}
		}
	}
	if _, err := b.e2(ctx, op, "debugfs", "-w", "-f", filepath.Join(b.scratch, "debugfs.set"), raw); err != nil {
		return err
	}
	// debugfs exits 0 whatever its commands did.
	text, err := b.e2(ctx, op, "debugfs", "-f", filepath.Join(b.scratch, "debugfs.read"), raw)
	if err != nil {
		return err
	}
	return checkTimes(text, len(inodes), b.Recipe.Epoch)
}

var inodeTime = regexp.MustCompile(`^ ?(a|c|cr)time: 0x([0-9a-f]{8}):([0-9a-f]{8}) `)

// checkTimes reads the answers of "stat" back: three times for each inode, all at the epoch.
func checkTimes(text []byte, inodes int, epoch int64) error {
	const op = "read times back"
	count := 0
	for line := range bytes.Lines(text) {
		m := inodeTime.FindSubmatch(line)
		if m == nil {
			continue
		}
		if seconds, err := strconv.ParseInt(string(m[2]), 16, 64); err != nil || seconds != epoch || string(m[3]) != "00000000" {
			return &engine.Error{Op: op, Err: fmt.Errorf("debugfs left %q, wanted %#x", strings.TrimSpace(string(line)), epoch)}
		}
		count++
	}
	if count != 3*inodes {
		return &engine.Error{Op: op, Err: fmt.Errorf("debugfs showed %d times of %d inodes", count, inodes)}
	}
	return nil
}

var (
	inodeCount = regexp.MustCompile(`(?m)^Inode count: +([0-9]+)$`)
	freeInodes = regexp.MustCompile(`^  Free inodes: ?(.*)$`)
)

// usedInodes reads the output of dumpe2fs: all inodes but the free ones and the
// reserved ones, of which only the root folder's (2) is a file of the tree.
func usedInodes(layout []byte) ([]int, error) {
	m := inodeCount.FindSubmatch(layout)
	if m == nil {
		return nil, fmt.Errorf("dumpe2fs names no inode count")
	}
	count, err := strconv.Atoi(string(m[1]))
	if err != nil {
		return nil, err
	}
	free := make([]bool, count+1)
	groups := 0
	scanner := bufio.NewScanner(bytes.NewReader(layout))
	scanner.Buffer(nil, 1<<24)
	for scanner.Scan() {
		m := freeInodes.FindStringSubmatch(scanner.Text())
		if m == nil {
			continue
		}
		groups++
		for part := range strings.SplitSeq(m[1], ",") {
			if part = strings.TrimSpace(part); part == "" {
				continue
			}
			from, to, isRange := strings.Cut(part, "-")
			if !isRange {
				to = from
			}
			first, err1 := strconv.Atoi(from)
			last, err2 := strconv.Atoi(to)
			if err1 != nil || err2 != nil || first < 1 || last > count || first > last {
				return nil, fmt.Errorf("dumpe2fs names free inodes %q of %d", part, count)
			}
			for i := first; i <= last; i++ {
				free[i] = true
			}
		}
	}
	if err := scanner.Err(); err != nil {
		return nil, err
	}
	if groups == 0 {
		return nil, fmt.Errorf("dumpe2fs names no free inodes")
	}
	used := []int{2}
	for i := 11; i <= count; i++ {
		if !free[i] {
			used = append(used, i)
		}
	}
	return used, nil
}
