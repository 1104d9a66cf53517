package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

const (
	// mergedUsr keeps usrmerge, and with it all of perl, out of an image.
	mergedUsr = "usr-is-merged"
	// mergedUsrHook makes /bin, /lib and /sbin links before the first package is unpacked.
	mergedUsrHook = "/usr/share/mmdebstrap/hooks/maybe-merged-usr"
)

// rootfs is the tree that mmdebstrap makes, as a tarball in the cache.
type rootfs struct {
	Tar    string
	Cached bool
}

// rootfsRecord lies beside the tarball and is written after it.
type rootfsRecord struct {
	SHA256   bench.SHA256 `json:"sha256"`
	Packages []Package    `json:"packages"`
}

// rootfsKey is a digest of all that decides the tree: a tarball is used again
// only for the same packages in the same versions.
func rootfsKey(suite string, epoch int64, packages []Package, mmdebstrap string) (string, error) {
	text, err := json.Marshal(map[string]any{
		"format": 1, "suite": suite, "epoch": epoch, "packages": packages, "mmdebstrap": mmdebstrap, "hook": mergedUsrHook,
	})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// makeRootfs returns the tree of packages, from the cache where it holds one.
func (b *build) makeRootfs(ctx context.Context, a *apt, packages []Package) (rootfs, error) {
	const op = "make root tree"
	key, err := rootfsKey(b.Recipe.Suite, b.Recipe.Epoch, packages, b.tools["mmdebstrap"])
	if err != nil {
		return rootfs{}, &engine.Error{Op: op, Err: err}
	}
	dir := filepath.Join(b.Cache, "rootfs")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return rootfs{}, &engine.Error{Op: op, Err: err}
	}
	base := filepath.Join(dir, fmt.Sprintf("%s-%s", b.Recipe.Name, key[:32]))
	made := rootfs{Tar: base + ".tar"}

	made.Cached, err = b.cachedRootfs(ctx, base)
	if err != nil || made.Cached {
		return made, err
	}
	// A tarball without its record is no tarball: the record is written last and taken away first.
	if err := os.Remove(base + ".json"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return rootfs{}, &engine.Error{Op: op, Err: err}
	}
	partial := base + ".partial.tar"
	defer os.Remove(partial)
	if err := b.mmdebstrap(ctx, a, packages, partial); err != nil {
		return rootfs{}, err
	}
	if err := os.Rename(partial, made.Tar); err != nil {
		return rootfs{}, &engine.Error{Op: op, Err: err}
	}
	digest, err := b.hashes.file(ctx, made.Tar)
	if err != nil {
		return rootfs{}, err
	}
	record, err := json.MarshalIndent(rootfsRecord{SHA256: digest.SHA256, Packages: packages}, "", "\t")
	if err != nil {
		return rootfs{}, &engine.Error{Op: op, Err: err}
	}
	if err := renameio.WriteFile(base+".json", append(record, '\n'), 0o644); err != nil {
		return rootfs{}, &engine.Error{Op: op, Err: err}
	}
	return made, b.dropOtherRootfs(dir, filepath.Base(base))
}

// cachedRootfs says whether the tarball is there and is the one that was recorded.
func (b *build) cachedRootfs(ctx context.Context, base string) (bool, error) {
	text, err := os.ReadFile(base + ".json")
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, &engine.Error{Op: "read cached root tree", Err: err}
	}
	var record rootfsRecord
	if err := json.Unmarshal(text, &record); err != nil {
		b.say("cached root tree: its record cannot be read, made again: %v", err)
		return false, nil
	}
	digest, err := b.hashes.file(ctx, base+".tar")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case digest.SHA256 != record.SHA256:
		b.say("cached root tree: its digest differs from the recorded one, made again")
		return false, nil
	}
	return true, nil
}

// dropOtherRootfs keeps one tarball for each recipe.
func (b *build) dropOtherRootfs(dir, keep string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return &engine.Error{Op: "tidy root trees", Err: err}
	}
	for _, entry := range entries {
		name := entry.Name()
		key, ok := strings.CutPrefix(name, string(b.Recipe.Name)+"-")
		// A recipe's name may begin with another's: what follows must be the key alone.
		if !ok || strings.HasPrefix(name, keep) || len(strings.SplitN(key, ".", 2)[0]) != 32 || strings.Contains(key, "-") {
			continue
		}
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			return &engine.Error{Op: "tidy root trees", Err: err}
		}
	}
	return nil
}

// mmdebstrap makes the tarball. It runs in namespaces of its own: its mounts are
// not the host's, and when it is killed nothing of it lives on.
func (b *build) mmdebstrap(ctx context.Context, a *apt, packages []Package, tar string) error {
	const op = "install packages"
	if _, err := lookPath("mmdebstrap"); err != nil {
		return err
	}
	// Full versions: what is installed is what was resolved, or nothing.
	include := make([]string, len(packages))
	for i, p := range packages {
		include[i] = p.Name + "=" + p.Version
	}
	args := []string{
		"--fork", "--pid", "--mount-proc", "--kill-child", "--",
		"sh", "-c", `umask 022; exec "$@"`, "sh",
		"mmdebstrap", "--mode=root", "--variant=essential", "--format=tar",
		"--hook-dir=" + mergedUsrHook,
		"--include=" + strings.Join(include, ","),
		`--aptopt=APT::Sandbox::User "root";`, // a scratch folder is closed to _apt
	}
	for _, option := range a.options {
		args = append(args, "--aptopt="+option)
	}
	args = append(args, b.Recipe.Suite, tar)
	args = append(args, a.sources...)
	cmd, err := command(ctx, "unshare", args...)
	if err != nil {
		return err
	}
	cmd.Env = append(cmd.Env, "TMPDIR="+b.scratch, fmt.Sprintf("SOURCE_DATE_EPOCH=%d", b.Recipe.Epoch))
	log, err := os.Create(filepath.Join(b.Work, string(b.Recipe.Name)+".mmdebstrap.log"))
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	err = cmd.Run()
	if ctx.Err() != nil {
		return &engine.Error{Op: op, Err: context.Cause(ctx), Log: log.Name()}
	}
	if err != nil {
		said, _ := os.ReadFile(log.Name())
		return &engine.Error{
			Op: op, Err: fmt.Errorf("mmdebstrap: %w: %s", err, lastLines(string(said), 3)), Log: log.Name(),
			Hint: "read the log; if the archive changed while this ran, run it again",
		}
	}
	return nil
}
