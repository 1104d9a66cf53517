package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

const recipeFile = "../../manifests/images/tiny.cue"

// staticProgram builds a static program that stands for guestd; text makes it another one.
func staticProgram(t testing.TB, text string) string {
	t.Helper()
	dir := t.TempDir()
	source := "package main\n\nfunc main() { println(" + `"` + text + `"` + ") }\n"
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", "guestd", "main.go")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return filepath.Join(dir, "guestd")
}

func tinyOptions(t testing.TB) BuildOptions {
	t.Helper()
	recipe, err := compile.LoadRecipe(recipeFile)
	if err != nil {
		t.Fatal(err)
	}
	return BuildOptions{
		Recipe: recipe, Dir: filepath.Dir(recipeFile), Out: filepath.Join(t.TempDir(), "tiny.qcow2"),
		Guestd: staticProgram(t, "one"), Work: t.TempDir(), Cache: t.TempDir(),
	}
}

// The recipe of the lock workload, for real: two builds from nothing give the
// same bytes, a third takes the packages' tree from the cache, and the image
// holds what the workload needs.
func TestBuildTiny(t *testing.T) {
	ctx := context.Background()
	o := tinyOptions(t)
	var log bytes.Buffer
	o.Log = &log
	once := func() Built {
		t.Helper()
		begin := time.Now()
		built, err := Build(ctx, o)
		if err != nil {
			t.Fatal(err, log.String())
		}
		t.Logf("%.1f s, tree cached %v, %d bytes, %d packages", time.Since(begin).Seconds(), built.CachedTree, built.Size, len(built.Packages))
		if have := sha256Of(t, o.Out); have != built.SHA256 {
			t.Errorf("the file's sha256 is %s, built said %s", have, built.SHA256)
		}
		if left := processesWith(t, o.Cache); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
		if entries, err := filepath.Glob(filepath.Join(o.Work, scratchPrefix+"*")); err != nil || len(entries) > 0 {
			t.Errorf("left behind: %v %v", entries, err)
		}
		return built
	}
	first := once()
	cached := once()
	if !cached.CachedTree || first.CachedTree {
		t.Errorf("tree cached: %v, then %v", first.CachedTree, cached.CachedTree)
	}
	time.Sleep(1100 * time.Millisecond) // another second, for the clocks that have only those
	o.Cache, o.Out = t.TempDir(), filepath.Join(t.TempDir(), "tiny.qcow2")
	again := once()
	if again.CachedTree || again.SHA256 != first.SHA256 || cached.SHA256 != first.SHA256 {
		t.Errorf("not reproducible: %s, %s, %s", first.SHA256, cached.SHA256, again.SHA256)
	}
	if first.Guestd != sha256Of(t, o.Guestd) {
		t.Errorf("guestd inside is %s", first.Guestd)
	}
	var listed Built
	text, err := os.ReadFile(PackagesFile(o.Out))
	if err != nil || json.Unmarshal(text, &listed) != nil || listed.SHA256 != again.SHA256 || len(listed.Packages) != len(again.Packages) {
		t.Errorf("list of packages: %v, %s", err, text)
	}

	// Another guest server is another image, in seconds, and the cached tree is not touched by it.
	o.Guestd = staticProgram(t, "two")
	other := once()
	if !other.CachedTree || other.SHA256 == first.SHA256 || other.Guestd == first.Guestd {
		t.Errorf("another guestd gave %+v", other)
	}

	ws, _ := newWorkspace(t)
	m := attach(t, ws, AttachOptions{Path: o.Out, Image: bench.Image{Sha256: other.SHA256}, Method: MethodRaw, CacheDir: ws.State})
	lookAtTiny(t, m.Dir(), o)

	// A cached tree that was damaged, or whose record was, is not used.
	records, err := filepath.Glob(filepath.Join(o.Cache, "rootfs", "*.json"))
	if err != nil || len(records) != 1 {
		t.Fatalf("cache holds %v, %v", records, err)
	}
	base := strings.TrimSuffix(records[0], ".json")
	b := &build{BuildOptions: o, hashes: hashes{filepath.Join(o.Cache, "digests")}}
	for _, step := range []struct {
		spoil func()
		want  bool
	}{
		{func() {}, true},
		{func() { flipBit(t, base+".tar", 1<<20) }, false},
		{func() { flipBit(t, base+".tar", 1<<20) }, true},
		{func() { os.WriteFile(base+".json", []byte("{"), 0o644) }, false},
		{func() { os.Remove(base + ".json") }, false},
	} {
		step.spoil()
		if ok, err := b.cachedRootfs(ctx, base); err != nil || ok != step.want {
			t.Errorf("cached tree is used: %v, %v, wanted %v", ok, err, step.want)
		}
	}
}

func lookAtTiny(t *testing.T, root string, o BuildOptions) {
	t.Helper()
	for _, dir := range []string{"dev", "proc", "root", "run", "sys", "tmp"} {
		if info, err := os.Lstat(filepath.Join(root, dir)); err != nil || !info.IsDir() {
			t.Errorf("/%s is no folder: %v", dir, err)
		}
	}
	if info, err := os.Stat(filepath.Join(root, "tmp")); err != nil || info.Mode()&os.ModeSticky == 0 || info.Mode().Perm() != 0o777 {
		t.Errorf("/tmp has mode %v", info.Mode())
	}
	if passwd, err := os.ReadFile(filepath.Join(root, "etc/passwd")); err != nil || !strings.HasPrefix(string(passwd), "root:") {
		t.Errorf("/etc/passwd: %.20q %v", passwd, err)
	}
	for name, want := range map[string]string{"etc/hostname": "tiny\n", "etc/resolv.conf": ""} {
		if text, err := os.ReadFile(filepath.Join(root, name)); err != nil || string(text) != want {
			t.Errorf("/%s is %q, %v", name, text, err)
		}
	}
	for _, file := range o.Recipe.Files {
		if have, want := sha256Of(t, filepath.Join(root, string(file.Path))), sha256Of(t, filepath.Join(o.Dir, file.Source)); have != want {
			t.Errorf("%s is another file", file.Path)
		}
	}
	for _, path := range o.Recipe.Remove {
		if _, err := os.Lstat(filepath.Join(root, path)); !isMissing(err) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	if have, want := sha256Of(t, filepath.Join(root, GuestdPath)), sha256Of(t, o.Guestd); have != want {
		t.Errorf("guestd is another file")
	}
	lookAtBoot(t, root, o)
	python := exec.Command("chroot", root, "/usr/bin/python3", "-c", "import sqlite3, json, http.server, fcntl, mmap; print(sqlite3.sqlite_version)")
	if out, err := python.CombinedOutput(); err != nil {
		t.Errorf("python3 in the image: %v: %s", err, out)
	}
	if out, err := exec.Command("chroot", root, "/usr/bin/busybox", "true").CombinedOutput(); err != nil {
		t.Errorf("busybox in the image: %v: %s", err, out)
	}
	// Nothing of this machine: neither which archive it uses nor through which proxy.
	if out, _ := exec.Command("grep", "-rlE", "deb \\[|Acquire::", filepath.Join(root, "etc")).Output(); len(out) > 0 {
		t.Errorf("the machine's apt sources are in %s", out)
	}
}

// A build that is stopped while mmdebstrap runs leaves no process and no scratch folder.
func TestBuildDiesWithItsContext(t *testing.T) {
	o := tinyOptions(t)
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	stop := errors.New("stopped by the test")
	seen := make(chan bool, 1)
	go func() {
		for range 12000 { // two minutes: the kernel comes first, and a mirror may be slow
			if text, _ := os.ReadFile(filepath.Join(o.Work, "tiny.mmdebstrap.log")); bytes.Contains(text, []byte("extracting archives")) {
				seen <- true
				cancel(stop)
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		seen <- false
		cancel(stop)
	}()
	begin := time.Now()
	_, err := Build(ctx, o)
	if !errors.Is(err, stop) || !<-seen {
		t.Fatalf("got %v after %v", err, time.Since(begin))
	}
	for range 100 { // the namespace's processes end a moment after its first one
		if len(processesWith(t, o.Cache)) == 0 && len(processesWith(t, scratchPrefix)) == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if left := append(processesWith(t, o.Cache), processesWith(t, scratchPrefix)...); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := os.Stat(o.Out); !isMissing(err) {
		t.Errorf("an image is there: %v", err)
	}
	if tars, _ := filepath.Glob(filepath.Join(o.Cache, "rootfs", "*")); len(tars) > 0 {
		t.Errorf("left in the cache: %v", tars)
	}
}

func TestBuildRefuses(t *testing.T) {
	good := tinyOptions(t)
	for name, c := range map[string]struct {
		spoil func(*BuildOptions)
		want  error
	}{
		"option as a package":  {func(o *BuildOptions) { o.Recipe.Packages = []string{"--allow-unauthenticated"} }, engine.ErrUsage},
		"pattern as a package": {func(o *BuildOptions) { o.Recipe.Packages = []string{"?essential"} }, engine.ErrUsage},
		"suite with a space":   {func(o *BuildOptions) { o.Recipe.Suite = "a b" }, engine.ErrUsage},
		"epoch in the future":  {func(o *BuildOptions) { o.Recipe.Epoch = time.Now().Unix() + 100 }, engine.ErrUsage},
		"no size":              {func(o *BuildOptions) { o.Recipe.Size = "0" }, engine.ErrUsage},
		"dynamic guestd":       {func(o *BuildOptions) { o.Guestd = "/usr/bin/tar" }, engine.ErrRefused},
		"no guestd":            {func(o *BuildOptions) { o.Guestd = filepath.Join(t.TempDir(), "absent") }, os.ErrNotExist},
	} {
		t.Run(name, func(t *testing.T) {
			o := good
			c.spoil(&o)
			if _, err := Build(context.Background(), o); !errors.Is(err, c.want) {
				t.Errorf("got %v, wanted %v", err, c.want)
			}
		})
	}
}

// Files and removals of a recipe stay in the tree, whatever links are in it.
func TestLayFilesStaysInTheTree(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "victim"), []byte("v"), 0o644); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"out": outside, "up": "../../../../../../" + outside, "bin": "usr/bin", "file": filepath.Join(outside, "victim")} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "usr/bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, path := range []string{"/out/new", "/up/new"} {
		if err := writeFile(root, path, 0o644, strings.NewReader("x")); err == nil {
			t.Errorf("%s was written", path)
		}
	}
	if err := removeAll(root, "/out/victim"); err == nil {
		if _, err := os.Stat(filepath.Join(outside, "victim")); err != nil {
			t.Error("a file outside of the tree was removed")
		}
	}
	for _, path := range []string{"/", "", "..", "/.."} {
		if err := removeAll(root, path); !errors.Is(err, engine.ErrUsage) {
			t.Errorf("remove %q: %v", path, err)
		}
	}
	// A link in the place of a file is replaced; a merged /usr is followed.
	for _, path := range []string{"/file", "/bin/tool", "/../usr/new/deep/file"} {
		if err := writeFile(root, path, 0o755, strings.NewReader("x")); err != nil {
			t.Error(err)
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, "usr/bin/tool")); err != nil || string(text) != "x" {
		t.Errorf("merged /usr: %q %v", text, err)
	}
	if text, err := os.ReadFile(filepath.Join(outside, "victim")); err != nil || string(text) != "v" {
		t.Errorf("outside: %q %v", text, err)
	}
	sources, err := os.OpenRoot(outside)
	if err != nil {
		t.Fatal(err)
	}
	defer sources.Close()
	if err := layFile(root, sources, bench.RecipeFile{Path: "/x", Mode: "0644", Source: "../etc/passwd"}); !errors.Is(err, engine.ErrUsage) {
		t.Errorf("a source from outside of the recipe's folder: %v", err)
	}
	if err := layFile(root, sources, bench.RecipeFile{Path: "/x", Mode: "0644", Source: "victim", Content: "y"}); !errors.Is(err, engine.ErrUsage) {
		t.Errorf("content and source: %v", err)
	}
}

// A package that is not what was resolved is an error.
func TestCheckInstalled(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "var/lib/dpkg"), 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	const a = "Package: a\nStatus: install ok installed\nVersion: 1\nDescription: x\n Version: 9\n\n"
	const b = "Package: b\nStatus: install ok installed\nVersion: 1:2\n\n"
	for text, ok := range map[string]bool{
		a + b: true, a: false, strings.Replace(a+b, "1:2", "2", 1): false, a + b + strings.Replace(a, "Package: a", "Package: c", 1): false,
		a + strings.Replace(b, "ok installed", "ok unpacked", 1): false, "": false,
	} {
		if err := os.WriteFile(filepath.Join(dir, "var/lib/dpkg/status"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		build := &build{packages: []Package{{Name: "a", Version: "1"}, {Name: "b", Version: "1:2"}}}
		if err := build.checkInstalled(root); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// What a killed build left is taken away by the next; a living one's is not.
func TestScratch(t *testing.T) {
	work := t.TempDir()
	living, done, err := newScratch(work, 1<<62)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	dead, foreign := filepath.Join(work, scratchPrefix+"dead"), filepath.Join(work, "drumsbench-other")
	young := filepath.Join(work, scratchPrefix+"young")
	for _, dir := range []string{dead, foreign, young} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{dead, foreign, living} {
		if err := os.Chtimes(dir, t0, t0); err != nil {
			t.Fatal(err)
		}
	}
	dropDeadScratch(work)
	for dir, want := range map[string]bool{dead: false, foreign: true, young: true, living: true} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s there: %v, wanted %v", dir, err == nil, want)
		}
	}
}
