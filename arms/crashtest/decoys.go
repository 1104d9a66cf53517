package crashtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/containerd/cgroups/v3"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// decoys look like a run's things and are not: names that differ in one
// character, a process that is called like one, a mount, a folder that a
// symbolic link in the run's own folder points to, a loop device without a claim.
type decoys struct {
	checks []decoy
	undo   []func() error
	// device is the loop device, empty without one.
	device string
}

type decoy struct {
	what string
	// there says whether it is as it was made.
	there func() bool
}

// add makes a decoy. make returns how it is taken away again.
func (d *decoys) add(what string, make func() (func() error, error), there func() bool) error {
	undo, err := make()
	if err != nil {
		return fmt.Errorf("make decoy %s: %w", what, err)
	}
	d.undo = append(d.undo, undo)
	d.checks = append(d.checks, decoy{what, there})
	if !there() {
		return fmt.Errorf("decoy %s is not as it was made", what)
	}
	return nil
}

// touched lists the decoys that are not as they were made.
func (d *decoys) touched() (list []string) {
	for _, c := range d.checks {
		if !c.there() {
			list = append(list, c.what+" was touched")
		}
	}
	return list
}

// remove takes the decoys away, the last first. Idempotent.
func (d *decoys) remove() error {
	var errs []error
	for len(d.undo) > 0 {
		last := d.undo[len(d.undo)-1]
		d.undo = d.undo[:len(d.undo)-1]
		errs = append(errs, last())
	}
	return errors.Join(errs...)
}

// plant makes decoys for the run of a claim.
func (h *Harness) plant(claim string) (_ *decoys, err error) {
	d := &decoys{}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.remove())
		}
	}()
	if claim == "" {
		return d, nil
	}
	similar := claim + "0"
	folder := filepath.Join(h.State, "work", similar)
	if err := d.file(filepath.Join(folder, "slot-0.0", "upper", "file")); err != nil {
		return d, err
	}
	if work := filepath.Join(h.State, "work", claim); exists(work) {
		link := filepath.Join(work, "link")
		if err := os.Symlink(folder, link); err != nil {
			return d, err
		}
	}
	point := filepath.Join(folder, "image-0123456789ab", "root")
	if err := d.mount(point); err != nil {
		return d, err
	}
	groups, err := ownGroups()
	if err != nil {
		return d, err
	}
	for _, g := range groups {
		if err := d.group(filepath.Join(g, "drums-"+similar)); err != nil {
			return d, err
		}
	}
	if err := d.process(filepath.Join(groups[""], "drums-"+similar)); err != nil {
		return d, err
	}
	// A loop device on the very file that the run's own one shows, without the claim.
	if raw, err := filepath.Glob(filepath.Join(h.State, "cache", "image", "raw", "*.raw")); err == nil && len(raw) > 0 && h.Criu {
		if err := d.loop(raw[0]); err != nil {
			return d, err
		}
	}
	return d, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func (d *decoys) file(path string) error {
	const text = "somebody else's\n"
	top := filepath.Dir(filepath.Dir(filepath.Dir(path)))
	return d.add("file "+path, func() (func() error, error) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
		return func() error { return os.RemoveAll(top) }, os.WriteFile(path, []byte(text), 0o600)
	}, func() bool {
		b, err := os.ReadFile(path)
		return err == nil && string(b) == text
	})
}

func (d *decoys) mount(point string) error {
	return d.add("mount "+point, func() (func() error, error) {
		if err := os.MkdirAll(point, 0o755); err != nil {
			return nil, err
		}
		return func() error { return unix.Unmount(point, 0) }, unix.Mount("drums", point, "tmpfs", 0, "size=64k")
	}, func() bool {
		at, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(point))
		return err == nil && len(at) == 1 && at[0].FSType == "tmpfs"
	})
}

func (d *decoys) group(path string) error {
	var first os.FileInfo
	return d.add("control group "+path, func() (func() error, error) {
		if err := os.Mkdir(path, 0o755); err != nil {
			return nil, err
		}
		var err error
		first, err = os.Lstat(path)
		return func() error { return unix.Rmdir(path) }, err
	}, func() bool {
		now, err := os.Lstat(path)
		return err == nil && os.SameFile(first, now)
	})
}

// process is in a group of its own and called like a first process.
func (d *decoys) process(group string) error {
	cmd := exec.Command("/proc/self/exe", "1000")
	cmd.Path, cmd.Args = "/bin/sleep", []string{"drums-stage", "1000"}
	return d.add("process drums-stage", func() (func() error, error) {
		dir, err := os.Open(group)
		if err != nil {
			return nil, err
		}
		defer dir.Close()
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd()), Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		return func() error {
			err := cmd.Process.Kill()
			_ = cmd.Wait()
			return err
		}, nil
	}, func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		return err == nil && !strings.Contains(string(text), ") Z ")
	})
}

func (d *decoys) loop(backing string) error {
	return d.add("loop device of "+backing, func() (func() error, error) {
		out, err := exec.Command("/sbin/losetup", "--find", "--show", "--read-only", backing).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("%w: %s", err, out)
		}
		d.device = strings.TrimSpace(string(out))
		return func() error {
			if out, err := exec.Command("/sbin/losetup", "--detach", d.device).CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		}, nil
	}, func() bool {
		text, err := os.ReadFile("/sys/block/" + filepath.Base(d.device) + "/loop/backing_file")
		return err == nil && strings.Contains(string(text), filepath.Base(backing))
	})
}

// ownGroups are our own current groups by hierarchy: "" is v2, and of v1 those
// that hold limits.
func ownGroups() (map[string]string, error) {
	own, v2, err := cgroups.ParseCgroupFileUnified("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, err
	}
	groups := map[string]string{}
	for _, m := range mounts {
		if m.FSType == "cgroup2" {
			groups[""] = filepath.Join(m.Mountpoint, strings.TrimPrefix(v2, m.Root))
			continue
		}
		for _, name := range strings.Split(m.VFSOptions, ",") {
			if name == "pids" || name == "memory" {
				groups[name] = filepath.Join(m.Mountpoint, strings.TrimPrefix(own[name], m.Root))
			}
		}
	}
	if groups[""] == "" {
		return nil, errors.New("no cgroup2 hierarchy is mounted")
	}
	return groups, nil
}
