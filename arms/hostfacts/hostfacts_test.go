package hostfacts

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEachFactIsKnownOrSaysWhy(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range Read() {
		if seen[f.Name] {
			t.Errorf("%s: twice", f.Name)
		}
		seen[f.Name] = true
		if f.Known && (f.Value == "" || f.Source == "" || f.Reason != "") {
			t.Errorf("%s: known without value or source: %+v", f.Name, f)
		}
		if !f.Known && (f.Reason == "" || f.Value != "") {
			t.Errorf("%s: unknown without a reason: %+v", f.Name, f)
		}
	}
	for _, name := range []string{"kernel-release", "machine", "cpu-features", "cgroup-mode", "cap-sys-resource", "capabilities", "nbd", "boot-id", "host-id"} {
		if !seen[name] {
			t.Errorf("no fact %s", name)
		}
	}
}

func TestKernelReleaseIsTheKernels(t *testing.T) {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range Read() {
		if f.Name == "kernel-release" && f.Value != strings.TrimSpace(string(b)) {
			t.Errorf("got %q, want %q", f.Value, b)
		}
	}
}

func TestDevice(t *testing.T) {
	if v, err := device("/dev/null"); v != "present" || err != nil {
		t.Errorf("/dev/null: %q, %v", v, err)
	}
	if v, err := device("/dev/drums-none"); v != "absent" || err != nil {
		t.Errorf("missing: %q, %v", v, err)
	}
	if _, err := device("/etc/hostname"); err == nil {
		t.Error("a regular file passed for a device")
	}
}

// The id is not the machine's own, is the same each time, and is unknown without one.
func TestHostID(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const one, two = "0123456789abcdef0123456789abcdef", "1123456789abcdef0123456789abcdef"
	a, err := hostID(write("one", one+"\n"))
	again, err2 := hostID(write("again", one+"\n"))
	b, err3 := hostID(write("two", two+"\n"))
	if err := errors.Join(err, err2, err3); err != nil || a != again || a == b || strings.Contains(a, one) {
		t.Errorf("%s, again %s, another %s, %v", a, again, b, err)
	}
	for name, text := range map[string]string{"empty": "", "uninitialized": "uninitialized\n", "short": "0123\n"} {
		if v, err := hostID(write(name, text)); err == nil {
			t.Errorf("%s: %q", name, v)
		}
	}
	if v, err := hostID(filepath.Join(dir, "none")); err == nil {
		t.Errorf("missing: %q", v)
	}
}
