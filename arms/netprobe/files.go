package netprobe

import (
	"bufio"
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/arms/criu"
)

// needs lists a program and the files that it loads, as its own loader finds
// them: a root file system with these runs it.
func needs(ctx context.Context, program string) ([]string, error) {
	f, err := elf.Open(program)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", program, err)
	}
	defer f.Close()
	files := []string{program}
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		name, err := io.ReadAll(p.Open())
		if err != nil {
			return nil, fmt.Errorf("read loader of %s: %w", program, err)
		}
		loader := string(bytes.TrimRight(name, "\x00"))
		cmd := exec.CommandContext(ctx, loader, "--list", program)
		cmd.Env = criu.Env()
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("list what %s loads: %w", program, err)
		}
		files = append(files, loader)
		files = append(files, listed(out)...)
	}
	slices.Sort(files)
	return slices.Compact(files), nil
}

// listed are the paths in a loader's list: "libc.so.6 => /lib/libc.so.6 (0x…)".
func listed(out []byte) (paths []string) {
	scan := bufio.NewScanner(bytes.NewReader(out))
	for scan.Scan() {
		for _, word := range strings.Fields(scan.Text()) {
			if filepath.IsAbs(word) {
				paths = append(paths, filepath.Clean(word))
			}
		}
	}
	return paths
}

// copyFile copies what a path leads to, with the folders above it.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return fmt.Errorf("copy %s: %w", from, err)
	}
	return out.Close()
}
