package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/diskfs/go-diskfs/partition/gpt"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// t0 is some time of the past.
var t0 = time.Unix(1e9, 0)

func attach(t testing.TB, ws *engine.Workspace, o AttachOptions) *Mounted {
	t.Helper()
	m, err := Attach(context.Background(), ws, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Release(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return m
}

func TestAttach(t *testing.T) {
	ctx := context.Background()
	path, pin := smallImage(t, smallExt4(t))
	for method, story := range map[string]string{
		MethodRaw: "intent directory, bind directory, intent loop, bind loop, intent directory, bind directory, intent mount, bind mount, " +
			"gone mount, gone directory, gone loop, gone directory",
		MethodFuse: "intent directory, bind directory, intent file, bind file, intent export, bind export, intent loop, bind loop, intent directory, bind directory, intent mount, bind mount, " +
			"gone mount, gone directory, gone loop, gone export, gone file, gone directory",
	} {
		t.Run(method, func(t *testing.T) {
			ws, ledger := newWorkspace(t)
			var prepared []string
			m := attach(t, ws, AttachOptions{
				Path: path, Image: bench.Image{Sha256: pin}, Method: method, CacheDir: ws.State,
				Prepare: func(c *exec.Cmd) { prepared = append(prepared, filepath.Base(c.Path)) },
			})
			text, err := os.ReadFile(filepath.Join(m.Dir(), "hello"))
			if err != nil || string(text) != "hello from the image\n" {
				t.Errorf("read %q, %v", text, err)
			}
			if err := os.WriteFile(filepath.Join(m.Dir(), "hello"), nil, 0o644); !errors.Is(err, unix.EROFS) {
				t.Errorf("write: %v, wanted a read-only file system", err)
			}
			facts := map[string]string{}
			for _, f := range m.Facts() {
				if !f.Known {
					t.Errorf("fact %s is unknown", f.Name)
				}
				facts[f.Name] = f.Value
			}
			if facts["image.attach"] != method || facts["image.sha256"] != string(pin) {
				t.Errorf("facts %v", facts)
			}
			if method == MethodFuse && !strings.Contains(strings.Join(prepared, " "), "qemu-storage-daemon") {
				t.Errorf("the daemon was started without Prepare: %v", prepared)
			}
			if err := m.Verify(ctx); err != nil {
				t.Error(err)
			}
			wantLoopOf(t, ledger, facts["image.device"])
			for range 2 { // idempotent
				if err := m.Release(ctx); err != nil {
					t.Fatal(err)
				}
			}
			if ledger.story() != story {
				t.Errorf("ledger: %s\nwanted: %s", ledger.story(), story)
			}
			if left := hostState(t, ws.Work); left != "" {
				t.Errorf("left behind: %s", left)
			}
			if left := hostState(t, ws.State); left != "" {
				t.Errorf("left behind: %s", left)
			}
			if entries, err := os.ReadDir(ws.Work); err != nil || len(entries) > 0 {
				t.Errorf("left in the work folder: %v, %v", entries, err)
			}
		})
	}
}

// wantLoopOf checks that the ledger's identity of a loop device is the one that
// tells it from a device that shows another file.
func wantLoopOf(t *testing.T, ledger *book, path string) {
	t.Helper()
	for _, l := range ledger.lines {
		if l.Op != "bind" || l.Kind != "loop" {
			continue
		}
		var i Identity
		if _, err := fmt.Sscan(string(l.Identity.Dev)+" "+string(l.Identity.Ino), &i.Dev, &i.Ino); err != nil || l.Identity.Loop != path {
			t.Fatalf("bound as %+v, %v", l.Identity, err)
		}
		for _, c := range []struct {
			id   Identity
			want bool
		}{{i, true}, {Identity{Dev: i.Dev, Ino: i.Ino + 1}, false}, {Identity{Dev: i.Dev + 1, Ino: i.Ino}, false}} {
			if ours, err := loopShows(path, c.id); err != nil || ours != c.want {
				t.Errorf("%s shows %+v: %v, %v, wanted %v", path, c.id, ours, err, c.want)
			}
		}
		return
	}
	t.Error("no loop device was bound")
}

func TestRawFileIsUsedAgainAndMadeAgain(t *testing.T) {
	ctx := context.Background()
	path, pin := smallImage(t, smallExt4(t))
	ws, _ := newWorkspace(t)
	options := AttachOptions{Path: path, Image: bench.Image{Sha256: pin}, Method: MethodRaw, CacheDir: ws.State}
	raw := filepath.Join(ws.State, "raw", string(pin)+".raw")
	once := func(want string) {
		t.Helper()
		m := attach(t, ws, options)
		for _, f := range m.Facts() {
			if f.Name == "image.raw.cached" && f.Value != want {
				t.Errorf("raw file cached: %s, wanted %s", f.Value, want)
			}
		}
		if text, err := os.ReadFile(filepath.Join(m.Dir(), "hello")); err != nil || string(text) != "hello from the image\n" {
			t.Errorf("read %q, %v", text, err)
		}
		if err := m.Release(ctx); err != nil {
			t.Fatal(err)
		}
	}
	once("false")
	once("true")
	if err := os.Chtimes(raw, t0, t0); err != nil { // another identity, the same content
		t.Fatal(err)
	}
	once("true")
	flipBit(t, raw, 1<<20)
	once("false")
	if err := os.Truncate(raw, 1<<20); err != nil {
		t.Fatal(err)
	}
	once("false")
	if err := os.Remove(raw); err != nil {
		t.Fatal(err)
	}
	once("false")
	if err := os.WriteFile(strings.TrimSuffix(raw, ".raw")+".json", []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	once("false")
	once("true")
}

// The check at the end of a run.
func TestVerifyAgain(t *testing.T) {
	ctx := context.Background()
	for name, damage := range map[string]func(t *testing.T, image, raw string){
		"image changed": func(t *testing.T, image, _ string) { flipBit(t, image, 70<<10) },
		"image replaced": func(t *testing.T, image, _ string) {
			if err := os.Rename(copyFile(t, "/proc/self/exe"), image); err != nil {
				t.Fatal(err)
			}
		},
		"image gone": func(t *testing.T, image, _ string) {
			if err := os.Remove(image); err != nil {
				t.Fatal(err)
			}
		},
		"raw file changed": func(t *testing.T, _, raw string) { flipBit(t, raw, 1<<20) },
		"raw file replaced by an equal one": func(t *testing.T, _, raw string) {
			if err := os.Rename(copyFile(t, raw), raw); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			path, pin := smallImage(t, smallExt4(t))
			ws, _ := newWorkspace(t)
			m := attach(t, ws, AttachOptions{Path: path, Image: bench.Image{Sha256: pin}, Method: MethodRaw, CacheDir: ws.State})
			if err := m.Verify(ctx); err != nil {
				t.Fatal(err)
			}
			damage(t, path, m.raw)
			wantRefused(t, m.Verify(ctx))
		})
	}
}

// gptDisk is a raw file of 12 MiB with two partitions; the second holds fs.
func gptDisk(t testing.TB, fs string) string {
	t.Helper()
	disk := filepath.Join(t.TempDir(), "gpt.raw")
	f, err := os.Create(disk)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(12 << 20); err != nil {
		t.Fatal(err)
	}
	table := &gpt.Table{LogicalSectorSize: 512, PhysicalSectorSize: 512, ProtectiveMBR: true, Partitions: []*gpt.Partition{
		{Index: 1, Start: 2048, End: 4095, Type: gpt.EFISystemPartition, Name: "efi"},
		{Index: 2, Start: 6144, End: 6144 + 8191, Type: gpt.LinuxFilesystem, Name: "root"},
	}}
	if err := table.Write(f, 12<<20); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(fs)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(content, 6144*512); err != nil {
		t.Fatal(err)
	}
	return disk
}

func TestAttachPartition(t *testing.T) {
	ctx := context.Background()
	path, pin := smallImage(t, gptDisk(t, smallExt4(t)))
	for _, method := range []string{MethodRaw, MethodFuse} {
		t.Run(method, func(t *testing.T) {
			ws, _ := newWorkspace(t)
			options := AttachOptions{Path: path, Image: bench.Image{Sha256: pin, Partition: 2}, Method: method, CacheDir: ws.State}
			m := attach(t, ws, options)
			if text, err := os.ReadFile(filepath.Join(m.Dir(), "hello")); err != nil || string(text) != "hello from the image\n" {
				t.Errorf("read %q, %v", text, err)
			}
			if err := m.Release(ctx); err != nil {
				t.Fatal(err)
			}
			for number, words := range map[int64]string{0: "no ext4", 1: "no ext4", 3: "no partition 3"} {
				options.Image.Partition = number
				ws, ledger := newWorkspace(t)
				_, err := Attach(ctx, ws, options)
				wantRefused(t, err, words)
				if len(ledger.open) > 0 || hostState(t, ws.Work) != "" {
					t.Errorf("partition %d: left behind: %v %s", number, ledger.open, hostState(t, ws.Work))
				}
			}
		})
	}
	i, err := Inspect(ctx, path, map[string]bench.SHA256{"two": pin, "other": "0"}, t.TempDir(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if len(i.Pins) != 1 || i.Pins[0] != "two" || len(i.Partitions) != 2 || i.Partitions[1].Filesystem != "ext4" || i.Root != 2 || i.Guestd.Known {
		t.Errorf("inspected %+v", i)
	}
}

// A file system that the kernel does not mount leaves nothing behind.
func TestAttachUndoesWhatItBegan(t *testing.T) {
	raw := smallExt4(t)
	f, err := os.OpenFile(raw, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(make([]byte, 0x30), 1024); err != nil { // counts and sizes of the superblock, not its magic number
		t.Fatal(err)
	}
	f.Close()
	path, pin := smallImage(t, raw)
	for _, method := range []string{MethodRaw, MethodFuse} {
		ws, ledger := newWorkspace(t)
		_, err := Attach(context.Background(), ws, AttachOptions{Path: path, Image: bench.Image{Sha256: pin}, Method: method, CacheDir: ws.State})
		if err == nil {
			t.Fatal("a damaged file system was mounted")
		}
		if len(ledger.open) > 0 || !strings.Contains(ledger.story(), "intent mount") {
			t.Errorf("%s: open in the ledger: %v of %s", method, ledger.open, ledger.story())
		}
		if left := hostState(t, ws.Work) + hostState(t, ws.State); left != "" {
			t.Errorf("%s: left behind: %s", method, left)
		}
	}
}

func TestAttachRefuses(t *testing.T) {
	ctx := context.Background()
	path, pin := smallImage(t, smallExt4(t))
	ws, ledger := newWorkspace(t)
	options := AttachOptions{Path: path, Image: bench.Image{Sha256: pin}, CacheDir: ws.State}

	options.Method = MethodRaw
	options.Image.Sha256 = bench.SHA256(strings.Repeat("0", 64))
	_, err := Attach(ctx, ws, options)
	wantRefused(t, err, "not what was pinned")
	if len(ledger.lines) > 0 {
		t.Errorf("something was owned before the pin held: %s", ledger.story())
	}

	options.Image.Sha256 = pin
	options.Method = "loop"
	if _, err = Attach(ctx, ws, options); !errors.Is(err, engine.ErrUsage) {
		t.Errorf("unknown method: %v", err)
	}
	_, err = freeNBD(t.TempDir(), t.TempDir())
	wantRefused(t, err, "no nbd")
	if _, missing := os.Stat("/dev/nbd0"); missing != nil {
		options.Method = MethodNBD
		_, err = Attach(ctx, ws, options)
		wantRefused(t, err, "no nbd")
	}
	if len(ledger.open) > 0 || hostState(t, ws.Work) != "" {
		t.Errorf("left behind: %v %s", ledger.open, hostState(t, ws.Work))
	}
}

func TestFreeNBD(t *testing.T) {
	dev, sys := t.TempDir(), t.TempDir()
	for name, content := range map[string]string{"nbd0/size": "8192", "nbd0/pid": "1", "nbd1/size": "8192", "nbd2/size": "0"} {
		if err := os.MkdirAll(filepath.Join(sys, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{filepath.Join(sys, name), filepath.Join(dev, filepath.Dir(name))} {
			if err := os.WriteFile(path, []byte(content+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if path, err := freeNBD(dev, sys); err != nil || path != filepath.Join(dev, "nbd2") {
		t.Errorf("got %q, %v", path, err)
	}
	if err := os.WriteFile(filepath.Join(sys, "nbd2/size"), []byte("8\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := freeNBD(dev, sys)
	wantRefused(t, err, "all 3")
}

// A mount that is in use is an error that names the remedy, and Release can be called again.
func TestReleaseOfAMountInUse(t *testing.T) {
	path, pin := smallImage(t, smallExt4(t))
	ws, ledger := newWorkspace(t)
	m := attach(t, ws, AttachOptions{Path: path, Image: bench.Image{Sha256: pin}, Method: MethodRaw, CacheDir: ws.State})
	f, err := os.Open(filepath.Join(m.Dir(), "hello"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	patience = 200 * time.Millisecond
	defer func() { patience = 5 * time.Second }()
	var e *engine.Error
	if err := m.Release(context.Background()); !errors.Is(err, unix.EBUSY) || !errors.As(err, &e) || e.Hint == "" {
		t.Errorf("got %v, wanted busy with a hint", err)
	}
	if strings.Contains(ledger.story(), "gone") {
		t.Errorf("called gone while in use: %s", ledger.story())
	}
	f.Close()
	if err := m.Release(context.Background()); err != nil {
		t.Fatal(err)
	}
	if len(ledger.open) > 0 || hostState(t, ws.Work) != "" {
		t.Errorf("left behind: %v %s", ledger.open, hostState(t, ws.Work))
	}
}

// A daemon that dies leaves a dead mount, which Release still takes away.
func TestReleaseAfterTheDaemonDied(t *testing.T) {
	path, pin := smallImage(t, smallExt4(t))
	ws, ledger := newWorkspace(t)
	var daemon *exec.Cmd
	m := attach(t, ws, AttachOptions{
		Path: path, Image: bench.Image{Sha256: pin}, Method: MethodFuse, CacheDir: ws.State,
		Prepare: func(c *exec.Cmd) { daemon = c },
	})
	if err := daemon.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := m.Release(context.Background()); err != nil {
		t.Fatal(err)
	}
	if len(ledger.open) > 0 || hostState(t, ws.Work) != "" {
		t.Errorf("left behind: %v %s", ledger.open, hostState(t, ws.Work))
	}
}

func TestAttachCancelled(t *testing.T) {
	path, pin := smallImage(t, smallExt4(t))
	for _, method := range []string{MethodRaw, MethodFuse} {
		ws, ledger := newWorkspace(t)
		ctx, cancel := context.WithCancelCause(context.Background())
		stop := errors.New("stopped by the test")
		_, err := Attach(ctx, ws, AttachOptions{
			Path: path, Image: bench.Image{Sha256: pin}, Method: method, CacheDir: ws.State,
			Prepare: func(c *exec.Cmd) {
				if filepath.Base(c.Path) == "qemu-storage-daemon" || c.Args[1] == "convert" {
					cancel(stop)
				}
			},
		})
		cancel(nil)
		if !errors.Is(err, stop) {
			t.Errorf("%s: got %v", method, err)
		}
		if left := hostState(t, ws.Work) + hostState(t, ws.State); len(ledger.open) > 0 || left != "" {
			t.Errorf("%s: left behind: %v %s", method, ledger.open, left)
		}
	}
}

// Many at once: no loop device is taken twice, and none is left.
func TestAttachInParallel(t *testing.T) {
	path, pin := smallImage(t, smallExt4(t))
	ws, ledger := newWorkspace(t)
	type result struct {
		m   *Mounted
		err error
	}
	results := make(chan result)
	const n = 8
	for range n {
		go func() {
			m, err := Attach(context.Background(), ws, AttachOptions{Path: path, Image: bench.Image{Sha256: pin}, Method: MethodRaw, CacheDir: ws.State})
			results <- result{m, err}
		}()
	}
	devices := map[string]bool{}
	var mounted []*Mounted
	for range n {
		r := <-results
		if r.err != nil {
			t.Error(r.err)
			continue
		}
		mounted = append(mounted, r.m)
		for _, f := range r.m.Facts() {
			if f.Name == "image.device" {
				if devices[f.Value] {
					t.Errorf("%s twice", f.Value)
				}
				devices[f.Value] = true
			}
		}
	}
	for _, m := range mounted {
		if err := m.Release(context.Background()); err != nil {
			t.Error(err)
		}
	}
	if left := hostState(t, ws.Work) + hostState(t, ws.State); len(ledger.open) > 0 || left != "" {
		t.Errorf("left behind: %v %s", ledger.open, left)
	}
}
