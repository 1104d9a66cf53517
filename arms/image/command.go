package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/drumsbench/drumsbench/engine"
)

// packageOf names the Debian package of each program that this package starts.
var packageOf = map[string]string{
	"apt-cache": "apt", "apt-config": "apt", "apt-get": "apt",
	"debugfs": "e2fsprogs", "dumpe2fs": "e2fsprogs", "e2fsck": "e2fsprogs", "mke2fs": "e2fsprogs",
	"dpkg": "dpkg", "dpkg-query": "dpkg",
	"mmdebstrap": "mmdebstrap",
	"qemu-img":   "qemu-utils", "qemu-nbd": "qemu-utils", "qemu-storage-daemon": "qemu-system-common",
	"tar":     "tar",
	"unshare": "util-linux",
}

// lookPath finds a program in PATH and in the folders that a plain user's PATH
// leaves out. A missing one is ErrRefused with the package to install.
func lookPath(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", &engine.Error{
		Op: "find " + name, Err: fmt.Errorf("not in PATH, /usr/sbin or /sbin: %w", engine.ErrRefused),
		Hint: "apt-get install " + packageOf[name],
	}
}

// command prepares a program that dies with its whole process group when ctx
// ends. Its environment is the little that is listed here: a locale, an
// APT_CONFIG or a MKE2FS_CONFIG of the caller's must not reach a build.
func command(ctx context.Context, name string, args ...string) (*exec.Cmd, error) {
	path, err := lookPath(name)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "TZ=UTC"}
	for _, key := range []string{"HOME", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"} {
		if value, ok := os.LookupEnv(key); ok {
			cmd.Env = append(cmd.Env, key+"="+value)
		}
	}
	return cmd, nil
}

// output runs cmd and returns what it wrote to stdout. An error carries the end of stderr.
func output(ctx context.Context, op string, cmd *exec.Cmd) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout = &stdout
	if cmd.Stderr == nil {
		cmd.Stderr = &stderr
	}
	err := cmd.Run()
	if ctx.Err() != nil {
		return nil, &engine.Error{Op: op, Err: context.Cause(ctx)}
	}
	if err != nil {
		said := lastLines(stderr.String(), 3)
		if said == "" {
			said = lastLines(stdout.String(), 3)
		}
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, said)}
	}
	return stdout.Bytes(), nil
}

// run is command and output in one.
func run(ctx context.Context, op, name string, args ...string) ([]byte, error) {
	cmd, err := command(ctx, name, args...)
	if err != nil {
		return nil, err
	}
	return output(ctx, op, cmd)
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "; ")
}

// refuse is an engine.Error that wraps ErrRefused.
func refuse(op, hint, format string, args ...any) error {
	return &engine.Error{Op: op, Err: fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), engine.ErrRefused), Hint: hint}
}
