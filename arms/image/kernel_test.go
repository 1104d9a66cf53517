package image

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cavaliergopher/cpio"

	"github.com/drumsbench/drumsbench/arms/initrd"
	"github.com/drumsbench/drumsbench/engine/observe"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// lookAtBoot looks at what boots an image: a kernel, a ramdisk with this very
// guestd and the modules in loading order, and a listing that the finished file
// system equals in every path.
func lookAtBoot(t *testing.T, root string, o BuildOptions) {
	t.Helper()
	kernel, err := os.ReadFile(filepath.Join(root, initrd.Kernel))
	if err != nil || len(kernel) < 1<<20 {
		t.Errorf("kernel: %d bytes, %v", len(kernel), err)
	}
	ramdisk, err := os.Open(filepath.Join(root, initrd.Initramfs))
	if err != nil {
		t.Fatal(err)
	}
	defer ramdisk.Close()
	z, err := gzip.NewReader(ramdisk)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for in := cpio.NewReader(z); ; {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		if h.Name == "init" {
			want, err1 := os.ReadFile(o.Guestd)
			have, err2 := io.ReadAll(in)
			if err1 != nil || err2 != nil || !bytes.Equal(want, have) {
				t.Errorf("/init is another program (%v, %v)", err1, err2)
			}
		}
	}
	if len(names) == 0 || names[0] != "init" || !strings.HasSuffix(names[len(names)-1], "virtio_pci.ko") || !strings.HasSuffix(names[2], "-virtio_ring.ko") {
		t.Errorf("ramdisk holds %q", names)
	}
	if left, err := filepath.Glob(filepath.Join(root, "usr/lib/modules/*")); err != nil || len(left) > 0 {
		t.Errorf("modules in the image: %v, %v", left, err)
	}

	text, err := os.ReadFile(filepath.Join(root, observe.ListingPath))
	if err != nil {
		t.Fatal(err)
	}
	// By the times of the image: nothing of it counts as touched.
	state, err := observe.Changes(context.Background(), bytes.NewReader(text), root, []bench.Mount{{Point: "/", Fstype: "ext4"}}, nil)
	if err != nil || len(state.Entries) > 0 {
		t.Errorf("the image differs from its listing: %+v, %v", state.Entries, err)
	}
	// By content: a listing of the finished file system is the same but for the listing itself.
	var again bytes.Buffer
	if err := observe.WriteListing(context.Background(), &again, root, o.Recipe.Epoch); err != nil {
		t.Fatal(err)
	}
	have, want := unpacked(t, again.Bytes()), unpacked(t, text)
	at := strings.Index(have, observe.ListingPath+"\x00")
	if at < 0 {
		t.Fatal("the listing is not in the image")
	}
	end := at
	for range 3 {
		end += strings.IndexByte(have[end:], 0) + 1
	}
	if have[:at]+have[end:] != want {
		t.Error("the finished file system is not what the listing says")
	}
}

func unpacked(t *testing.T, packed []byte) string {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestKernelDependency(t *testing.T) {
	for text, want := range map[string][2]string{
		"linux-image-6.1.0-57-cloud-amd64 (= 6.1.192-3)": {"linux-image-6.1.0-57-cloud-amd64", "6.1.192-3"},
		"linux-image-6.12.41-cloud-arm64":                {"linux-image-6.12.41-cloud-arm64", ""},
	} {
		if m := kernelDependency.FindStringSubmatch(text); m == nil || m[1] != want[0] || m[2] != want[1] {
			t.Errorf("%s: %q", text, m)
		}
	}
	for _, text := range []string{"kmod", "linux-base (>= 4.3~)", "initramfs-tools | linux-initramfs-tool", "linux-image-a (>= 6)", "linux-image-a | linux-image-b"} {
		if m := kernelDependency.FindStringSubmatch(text); m != nil {
			t.Errorf("%s: %q", text, m)
		}
	}
}

// A kernel that is not in the archive, and a module that its package has not, fail the build.
func TestKernelRefuses(t *testing.T) {
	o := tinyOptions(t)
	for says, kernel := range map[string]bench.RecipeKernel{
		"linux-image-of-nobody": {Package: "linux-image-of-nobody"},
		"module of_nobody":      {Package: "linux-image-cloud", Modules: []string{"virtio_blk", "of_nobody"}},
	} {
		o.Recipe.Kernel = &kernel
		built, err := Build(context.Background(), o)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %+v, %v", says, built, err)
		}
		if _, err := os.Lstat(o.Out); !isMissing(err) {
			t.Errorf("%s: there is an image (%v)", says, err)
		}
	}
}

// A package in the cache that is another one by now is not used.
func TestDownloadIsCompared(t *testing.T) {
	o := tinyOptions(t)
	ctx := context.Background()
	a, err := newAPT(ctx, filepath.Join(o.Cache, "apt"), o.Recipe.Suite)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.update(ctx); err != nil {
		t.Fatal(err)
	}
	b := &build{BuildOptions: o, hashes: hashes{filepath.Join(o.Cache, "digests")}}
	first, err := b.download(ctx, a, "busybox-static")
	if err != nil {
		t.Fatal(err)
	}
	for _, spoil := range []func(){
		func() { flipBit(t, first.path, 1000) },
		func() { os.Remove(first.path) },
		func() { os.WriteFile(first.path, nil, 0o644) },
	} {
		spoil()
		again, err := b.download(ctx, a, "busybox-static")
		if err != nil || again.Package != first.Package || string(sha256Of(t, again.path)) != first.SHA256 {
			t.Errorf("%+v, %v", again, err)
		}
	}
	left, err := filepath.Glob(filepath.Join(o.Cache, "debs", "*"))
	if err != nil || len(left) != 1 {
		t.Errorf("the cache holds %v (%v)", left, err)
	}
}
