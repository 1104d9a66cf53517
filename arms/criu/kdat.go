package criu

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
)

// CRIU writes what it learnt of the kernel to /run/criu.kdat and reads it back
// on each start, which saves the probe. It writes only where /run is a tmpfs;
// elsewhere it leaves /run/criu.kdat.tmp behind on each call (criu/kerndat.c,
// kerndat_save_cache). An arm therefore puts a private tmpfs over /run in CRIU's
// own mount namespace, and fills it from a cache:
//
//	k, err := tool.Kdat(cacheDir) // names the file
//	err = k.Ensure(ctx)           // once, outside of any measurement window
//	err = k.Prefill("/run")       // in the stage that executes criu, after the mount
//
// CRIU itself checks no more of the file than two magics, of which one is the
// time of its build, and its size. What it holds is true for one boot of one
// kernel and one set of capabilities (device numbers, addresses of the vDSO,
// refused system calls), so the cache is keyed by these.

// KdatName is the file's name in /run.
const KdatName = "criu.kdat"

// Kdat is a cached probe of the kernel.
type Kdat struct {
	// File is the cache file; it may not exist yet.
	File string
	tool Tool
}

// Kdat names the cache file of this tool, kernel, boot and set of capabilities in cacheDir.
func (t Tool) Kdat(cacheDir string) (Kdat, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Kdat{}, &engine.Error{Op: "name kernel cache", Err: err}
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return Kdat{}, &engine.Error{Op: "name kernel cache", Err: err}
	}
	caps, err := capabilities()
	if err != nil {
		return Kdat{}, &engine.Error{Op: "name kernel cache", Err: err}
	}
	key := sha256.Sum256([]byte(strings.Join([]string{
		strings.TrimSpace(string(boot)), unix.ByteSliceToString(uts.Release[:]), unix.ByteSliceToString(uts.Version[:]), t.SHA256, caps,
	}, "\n")))
	return Kdat{File: filepath.Join(cacheDir, "kdat-"+hex.EncodeToString(key[:8])), tool: t}, nil
}

// capabilities of this process, effective set and bounding set.
func capabilities() (string, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return "", err
	}
	var caps []string
	for _, line := range strings.Split(string(status), "\n") {
		if strings.HasPrefix(line, "CapEff:") || strings.HasPrefix(line, "CapBnd:") {
			caps = append(caps, line)
		}
	}
	if len(caps) != 2 {
		return "", errors.New("/proc/self/status holds no CapEff and CapBnd")
	}
	return strings.Join(caps, " "), nil
}

// Ensure makes the cache file where it is missing: CRIU probes the kernel with a
// private tmpfs as its /run. Idempotent; nothing is mounted where others see it.
func (k Kdat) Ensure(ctx context.Context) error {
	if _, err := os.Stat(k.File); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(k.File), 0o755); err != nil {
		return &engine.Error{Op: "make kernel cache", Err: err}
	}
	err := withPrivateRun(func() error {
		if err := k.tool.probeKernel(ctx); err != nil {
			return err
		}
		return k.Save("/run")
	})
	if err != nil {
		return &engine.Error{Op: "make kernel cache", Err: err}
	}
	return nil
}

// Prefill copies the cache file into a directory that CRIU sees as /run. Without
// a cache file it does nothing: CRIU then probes, which is slower and as right.
func (k Kdat) Prefill(runDir string) error {
	data, err := os.ReadFile(k.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(runDir, KdatName), data, 0o600)
	}
	if err != nil {
		return &engine.Error{Op: "prefill kernel cache", Err: err}
	}
	return nil
}

// Save keeps what CRIU wrote to its /run, which is reached from outside as
// /proc/PID/root/run while CRIU waits for the answer to a notification. A file
// that is not there is fs.ErrNotExist.
func (k Kdat) Save(runDir string) error {
	fd, err := unix.Open(filepath.Join(runDir, KdatName), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &engine.Error{Op: "save kernel cache", Err: &os.PathError{Op: "open", Path: filepath.Join(runDir, KdatName), Err: err}}
	}
	file := os.NewFile(uintptr(fd), KdatName)
	defer file.Close()
	data, err := tailOf(file)
	if err == nil && len(data) == 0 {
		err = fmt.Errorf("%s is empty", KdatName)
	}
	if err == nil {
		err = renameio.WriteFile(k.File, data, 0o600, renameio.WithTempDir(filepath.Dir(k.File)))
	}
	if err != nil {
		return &engine.Error{Op: "save kernel cache", Err: err}
	}
	return nil
}

func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}
