package qemu

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cavaliergopher/cpio"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// selfBooting makes an image that boots itself: GRUB in front of the first
// partition of an MBR, an ext4 with kernel, ramdisk and an init of its own. The
// kernel and its modules are those of the image that scripts/prepare built.
func selfBooting(t *testing.T, b boot) bench.Image {
	t.Helper()
	dir, tree := t.TempDir(), filepath.Join(t.TempDir(), "tree")
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatalf("%v\nscripts/setup installs busybox-static", err)
	}
	testdata := func(name string) []byte { return read(t, filepath.Join("testdata/self", name)) }
	ramdisk := bytes.NewBuffer(read(t, b.initramfs))
	ramdisk.Write(make([]byte, -ramdisk.Len()&3))
	w := cpio.NewWriter(ramdisk) // the kernel lays it over the other
	for _, f := range []struct {
		name string
		mode cpio.FileMode
		data []byte
	}{
		{"bin", cpio.TypeDir | 0o755, nil}, {"bin/busybox", 0o755, busybox}, {"dev", cpio.TypeDir | 0o755, nil},
		{"newroot", cpio.TypeDir | 0o755, nil}, {"init", 0o755, testdata("init-ramdisk")},
	} {
		if err := w.WriteHeader(&cpio.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), Links: 1}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(f.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bin", "boot", "dev", "etc", "proc", "sbin", "www"} {
		if err := os.MkdirAll(filepath.Join(tree, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, data := range map[string][]byte{
		"bin/busybox": busybox, "boot/vmlinuz": read(t, b.kernel), "boot/initrd": ramdisk.Bytes(),
		"etc/udhcpc": testdata("udhcpc"), "sbin/init": testdata("init"), "www/platform": []byte("Linux"),
	} {
		if err := os.WriteFile(filepath.Join(tree, name), data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const size, start = 64 << 20, 1 << 20
	raw, out := filepath.Join(dir, "disk.raw"), filepath.Join(dir, "self.qcow2")
	disk, err := os.Create(raw)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	if err := disk.Truncate(size); err != nil {
		t.Fatal(err)
	}
	run(t, "mke2fs", "-q", "-t", "ext4", "-O", "^metadata_csum,^64bit", "-d", tree, "-E", fmt.Sprintf("offset=%d,root_owner=0:0", start), raw, fmt.Sprintf("%dk", (size-start)>>10))
	grub := grubFiles(t)
	core := filepath.Join(dir, "core.img")
	lib := filepath.Join(grub, "usr/lib/grub/i386-pc")
	run(t, filepath.Join(grub, "usr/bin/grub-mkimage"), "-O", "i386-pc", "-d", lib, "-p", "(hd0,msdos1)/boot/grub", "-c", "testdata/self/grub.cfg", "-o", core,
		"biosdisk", "part_msdos", "ext2", "linux", "boot")
	front := make([]byte, 512)
	copy(front, read(t, filepath.Join(lib, "boot.img"))[:440])
	entry := front[446:]
	entry[0], entry[4] = 0x80, 0x83
	binary.LittleEndian.PutUint32(entry[8:], start/512)
	binary.LittleEndian.PutUint32(entry[12:], (size-start)/512)
	front[510], front[511] = 0x55, 0xaa
	loader := append(front, read(t, core)...) // boot.img loads what lies behind it
	if len(loader) > start {
		t.Fatalf("the boot loader has %d bytes", len(loader))
	}
	if _, err := disk.WriteAt(loader, 0); err != nil {
		t.Fatal(err)
	}
	run(t, "qemu-img", "convert", "-q", "-f", "raw", "-O", "qcow2", raw, out)
	sum, err := digest(out)
	if err != nil {
		t.Fatal(err)
	}
	return bench.Image{File: out, Sha256: sum, Partition: 1}
}

// grubFiles is a folder with GRUB's packages unpacked. They come from the
// machine's own apt and are kept in the state directory's cache.
func grubFiles(t *testing.T) string {
	t.Helper()
	cache := filepath.Join(stateDir(), "cache", "qemu-test")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"grub-common", "grub-pc-bin"} {
		kept, err := filepath.Glob(filepath.Join(cache, name+"_*.deb"))
		if err != nil {
			t.Fatal(err)
		}
		if len(kept) == 0 {
			fresh, err := os.MkdirTemp(cache, "download-")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(fresh)
			cmd := exec.Command("apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", name)
			cmd.Dir = fresh
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %v\n%s\nthe machine's own apt sources must offer it; apt-get update", cmd, err, out)
			}
			if kept, err = filepath.Glob(filepath.Join(fresh, "*.deb")); err != nil || len(kept) != 1 {
				t.Fatalf("apt-get left %q: %v", kept, err)
			}
			to := filepath.Join(cache, filepath.Base(kept[0]))
			if err := os.Rename(kept[0], to); err != nil {
				t.Fatal(err)
			}
			kept[0] = to
		}
		run(t, "dpkg-deb", "-x", kept[0], dir)
	}
	return dir
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// page gets a page of a slot's server, until ctx ends.
func page(ctx context.Context, slot engine.Slot, path string) (string, error) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := slot.Dial(ctx, 5000)
		if tcp, ok := conn.(interface{ SetLinger(int) error }); ok && err == nil {
			err = tcp.SetLinger(0) // as guest.Client does: nothing of it stays
		}
		return conn, err
	}
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	for {
		text, err := func() (string, error) {
			q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://slot"+path, nil)
			if err != nil {
				return "", err
			}
			r, err := client.Do(q)
			if err != nil {
				return "", err
			}
			defer r.Body.Close()
			text, err := io.ReadAll(r.Body)
			if err == nil && r.StatusCode != http.StatusOK {
				err = errors.New(r.Status)
			}
			return string(text), err
		}()
		if err == nil || ctx.Err() != nil || slot.(engine.Mortal).Alive() != nil {
			return text, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// bootsItself is the manifest with an image that boots itself.
func bootsItself(t *testing.T) bench.Manifest {
	m := light(t)
	ws, _ := workspace(t)
	base := newArm(t, MethodLoadVM)
	own, err := base.Mount(t.Context(), ws, bench.MountParams{Image: m.Image})
	if err != nil {
		t.Fatal(describe(err))
	}
	m.Image = selfBooting(t, own.(*root).boot)
	if err := errors.Join(own.Release(t.Context()), base.Release(t.Context()), ws.Release(t.Context())); err != nil {
		t.Fatal(err)
	}
	return m
}

// An image that boots itself: its own loader, init and server, its address by
// DHCP; reached through Dial, saved and loaded; and all that nobody in it can say
// is unknown with the reason, which blocks a dump and a run.
func TestSelfBooting(t *testing.T) {
	t.Parallel()
	m := bootsItself(t)
	for _, method := range []string{MethodLoadVM, MethodFile} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			selfBoots(t, method, m)
		})
	}
}

func TestSelfBootingRun(t *testing.T) {
	if !alone(t) {
		return
	}
	res, by, _ := execute(t, newArm(t, MethodFile), bootsItself(t), "restore")
	if res.Verdict != engine.RunBlocked {
		t.Errorf("%s: %s", res.Verdict, res.Reason)
	}
	limits := by["base/gate-limits"]
	if limits.Verdict != engine.VerdictUnknown || !strings.Contains(fmt.Sprint(limits.Findings), errSelf.Error()) {
		t.Errorf("%s %+v", limits.Verdict, limits.Findings)
	}
	t.Log(res.Reason)
}

func selfBoots(t *testing.T, method string, m bench.Manifest) {
	s := makeSlotOf(t, method, m)
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	want := func(slot engine.Slot, path, text string) string {
		t.Helper()
		have, err := page(ctx, slot, path)
		if err != nil {
			console, _ := os.ReadFile(slotOf(slot).now.file(consoleFile))
			t.Fatalf("%s: %v\n%s", path, err, console)
		}
		if !strings.Contains(have, text) {
			t.Fatalf("%s is %q, want %q", path, have, text)
		}
		return have
	}
	begin := time.Now()
	want(s.slot, "/platform", "Linux")
	t.Logf("it answered after %v", time.Since(begin))
	want(s.slot, "/address", guestAddress)
	id := want(s.slot, "/boot", "-")
	if _, err := s.slot.Dial(ctx, 22); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("a port that is not forwarded: %v", err)
	}
	if conn, err := net.DialTimeout("tcp", "127.0.0.1:5000", time.Second); err == nil {
		conn.Close()
		t.Error("the machine's port is one of the host's")
	}
	selfUnknown(t, s.slot)

	p := bench.DumpParams{Port: m.Guest.Server.Port, Policy: *m.Checkpoint, Exclude: []string{}, Canary: m.Canary, Workload: bench.SHA256(strings.Repeat("0", 64))}
	_, _, err := s.slot.Dump(ctx, p, engine.GuestReference{})
	var e *engine.Error
	if !errors.As(err, &e) || !errors.Is(err, engine.ErrUnknown) || len(e.Findings) != 5 || e.Hint == "" {
		t.Errorf("the dump: %v", err)
	}
	want(s.slot, "/boot", id) // it runs on

	tenancy := slotOf(s.slot).now
	if err := tenancy.attach(ctx); err != nil {
		t.Fatal(err)
	}
	cp, err := s.slot.(*slot).write(ctx, p, census{}, engine.GuestReference{})
	tenancy.detach()
	if err != nil {
		t.Fatal(describe(err))
	}
	for i := range 2 {
		stopped, err := s.stopped(t, cp, s.slot, "slot-0")
		if err != nil {
			t.Fatal(describe(err))
		}
		selfUnknown(t, stopped)
		slot, err := stopped.Resume(ctx)
		if err != nil {
			t.Fatal(describe(err))
		}
		want(slot, "/boot", id)
		for _, f := range slot.(engine.Telling).Facts() {
			if f.Name == factSkew && (f.Known || !strings.Contains(f.Reason, errSelf.Error())) {
				t.Errorf("reset %d: %+v", i, f)
			}
		}
	}
}

// selfUnknown requires that nothing of the inside is said, and why, and that the enclosure is known.
func selfUnknown(t *testing.T, s interface {
	Observe(context.Context, ...engine.Aspect) engine.Observation
}) {
	t.Helper()
	o := s.Observe(t.Context(), engine.AspectLimits, engine.AspectMounts, engine.AspectNetwork, engine.AspectLocks, engine.AspectProcesses, engine.AspectState, engine.AspectEnclosure, engine.AspectMemory)
	for name, reason := range map[string]string{"limits": o.Limits.Reason(), "mounts": o.Mounts.Reason(), "network": o.Network.Reason(),
		"locks": o.Locks.Reason(), "processes": o.Processes.Reason(), "state": o.State.Reason()} {
		if !strings.Contains(reason, errSelf.Error()) {
			t.Errorf("%s: %q", name, reason)
		}
	}
	if found, known := o.Enclosure.Get(); !known || len(found) > 0 {
		t.Errorf("enclosure: %v %+v %s", known, found, o.Enclosure.Reason())
	}
	if _, known := o.Memory.Get(); !known {
		t.Error(o.Memory.Reason())
	}
}
