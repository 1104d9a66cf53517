package initrd

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cavaliergopher/cpio"
	"github.com/google/go-cmp/cmp"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// koFile is the smallest ELF file with a section .modinfo.
func koFile(modinfo string) []byte {
	names := "\x00.modinfo\x00.shstrtab\x00"
	const header, section = 64, 64
	at := uint64(header)
	var b bytes.Buffer
	h := elf.Header64{Type: uint16(elf.ET_REL), Machine: uint16(elf.EM_X86_64), Version: 1, Ehsize: header, Shentsize: section, Shnum: 3, Shstrndx: 2,
		Shoff: at + uint64(len(modinfo)+len(names))}
	copy(h.Ident[:], []byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1})
	binary.Write(&b, binary.LittleEndian, h)
	b.WriteString(modinfo + names)
	for _, s := range []elf.Section64{
		{},
		{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: at, Size: uint64(len(modinfo))},
		{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: at + uint64(len(modinfo)), Size: uint64(len(names))},
	} {
		binary.Write(&b, binary.LittleEndian, s)
	}
	return b.Bytes()
}

func moduleTree(t *testing.T, modules map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "6.1.0-test")
	for name, modinfo := range modules {
		at := filepath.Join(dir, "kernel/drivers", name+".ko")
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, koFile(modinfo), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "modules.builtin"), []byte("kernel/fs/ext4/ext4.ko\nkernel/lib/crc-16.ko\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func program(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "guestd")
	if err := os.WriteFile(path, []byte("the guest server"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoadOrder(t *testing.T) {
	dir := moduleTree(t, map[string]string{
		"virtio/virtio-ring":  "license=GPL\x00depends=\x00",
		"virtio/virtio":       "depends=virtio_ring\x00",
		"block/virtio_blk":    "depends=virtio,virtio_ring,ext4\x00softdep=pre: crc_16 early post: late\x00",
		"lib/early":           "depends=\x00",
		"lib/late":            "depends=absent\x00",
		"lib/needs_absent":    "depends=absent\x00",
		"lib/ring_a":          "depends=ring_b\x00",
		"lib/ring_b":          "depends=ring_a\x00",
		"other/never_touched": "depends=\x00",
	})
	order, err := loadOrder(dir, []string{"virtio-blk", "ext4", "virtio"})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range order {
		names = append(names, m.name)
	}
	if want := []string{"early", "virtio_ring", "virtio", "virtio_blk"}; !slices.Equal(names, want) {
		t.Errorf("%v, want %v", names, want)
	}
	for name, says := range map[string]string{"absent": "which the recipe needs", "needs_absent": "which needs_absent needs", "ring_a": "needs itself"} {
		if _, err := loadOrder(dir, []string{name}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "kernel/drivers/lib/late.ko"), []byte("no module"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := loadOrder(dir, []string{"late"}); err == nil {
		t.Error("a file that is no module was taken")
	}
}

// entries reads archives that follow each other, zeros between them.
func entries(t *testing.T, data []byte) map[string]string {
	t.Helper()
	out := map[string]string{}
	for data = bytes.TrimLeft(data, "\x00"); len(data) > 0; data = bytes.TrimLeft(data, "\x00") {
		r := bytes.NewReader(data)
		in := cpio.NewReader(r)
		last := ""
		for {
			h, err := in.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if h.Name <= last || h.ModTime.Unix() != 0 || h.Uid != 0 || h.Guid != 0 {
				t.Errorf("%+v after %s", h, last)
			}
			last = h.Name
			text, err := io.ReadAll(in)
			if err != nil {
				t.Fatal(err)
			}
			out["/"+h.Name] = h.Mode.String() + " " + string(text)
		}
		data = data[len(data)-r.Len():]
	}
	return out
}

func unzip(t *testing.T, data []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if !z.ModTime.IsZero() || z.Name != "" {
		t.Errorf("gzip header %+v", z.Header)
	}
	z.Multistream(false)
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func config() Config {
	return Config{
		Guest:    bench.Guest{User: "root", Home: "/root", Server: bench.Server{Port: 5000, Exec: []string{"/usr/local/bin/guestd", "init"}}},
		Hostname: "slot-1", Addresses: []string{Address}, Forward: []int{5000}, Pids: 100,
	}
}

func TestBuildAndAppend(t *testing.T) {
	dir := moduleTree(t, map[string]string{"a": "depends=b\x00", "b": "depends=\x00"})
	guestd := program(t)
	first, err := Build(guestd, dir, []string{"a"})
	if err != nil {
		t.Fatal(err)
	}
	again, err := Build(guestd, dir, []string{"a"})
	if err != nil || !bytes.Equal(first, again) {
		t.Errorf("two builds differ (%v)", err)
	}
	have := entries(t, unzip(t, first))
	want := map[string]string{
		"/init": "0100755 the guest server", "/modules": "040755 ",
		"/modules/00-b.ko": "0100644 " + string(koFile("depends=\x00")), "/modules/01-a.ko": "0100644 " + string(koFile("depends=b\x00")),
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Error(diff)
	}

	for pad := range 4 { // whatever the length of what was there
		base := append(slices.Clone(first), make([]byte, pad)...)
		whole, err := Append(base, config())
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(whole, base) || len(whole)%4 != 0 {
			t.Errorf("%d bytes, of them %d before", len(whole), len(base))
		}
		at := bytes.Index(whole[len(base):], []byte("070701")) + len(base)
		if at%4 != 0 || at-len(base) > 3 {
			t.Errorf("the second archive begins at %d, the first ends at %d", at, len(base))
		}
		second := entries(t, whole[at:])
		text, ok := strings.CutPrefix(second[proto.MachineFile], "0100400 ")
		var back Config
		if err := json.Unmarshal([]byte(text), &back); !ok || err != nil {
			t.Fatalf("%v: %q", err, second)
		}
		if diff := cmp.Diff(config(), back); diff != "" {
			t.Error(diff)
		}
		twice, err := Append(base, config())
		if err != nil || !bytes.Equal(whole, twice) {
			t.Errorf("two results differ (%v)", err)
		}
	}
}

func TestBuildRefuses(t *testing.T) {
	dir := moduleTree(t, map[string]string{"a": "depends=\x00"})
	if _, err := Build(program(t), dir, []string{"absent"}); !errors.Is(err, engine.ErrUsage) {
		t.Errorf("absent module: %v", err)
	}
	if _, err := Build(filepath.Join(dir, "none"), dir, []string{"a"}); err == nil {
		t.Error("absent guestd")
	}
	if _, err := Build(program(t), t.TempDir(), nil); err == nil {
		t.Error("a folder that is no kernel's")
	}
}

func TestAppendRefuses(t *testing.T) {
	for name, spoil := range map[string]func(*Config){
		"no host name":       func(c *Config) { c.Hostname = "" },
		"host name":          func(c *Config) { c.Hostname = "a b" },
		"address":            func(c *Config) { c.Addresses = []string{"10.0.2.15"} },
		"IPv6 address":       func(c *Config) { c.Addresses = []string{"fe80::1/64"} },
		"gateway":            func(c *Config) { c.Gateway = "host" },
		"gateway of nothing": func(c *Config) { c.Addresses, c.Forward, c.Gateway = nil, nil, Gateway },
		"forward of nothing": func(c *Config) { c.Addresses = nil },
		"port":               func(c *Config) { c.Forward = []int{0} },
		"pids":               func(c *Config) { c.Pids = -1 },
	} {
		c := config()
		spoil(&c)
		if _, err := Append([]byte("x"), c); !errors.Is(err, engine.ErrUsage) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
