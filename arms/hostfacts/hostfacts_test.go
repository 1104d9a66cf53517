package hostfacts

import (
	"os"
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
	for _, name := range []string{"kernel-release", "machine", "cpu-features", "cgroup-mode", "cap-sys-resource", "capabilities", "nbd", "boot-id"} {
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
