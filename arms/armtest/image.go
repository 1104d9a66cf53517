package armtest

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// What an arm says of itself is the same each time, complete, and nobody can change it.
func testDescribe(t *testing.T, h Harness) {
	arm := h.New(t)
	d := arm.Describe()
	if d.Kind == "" {
		t.Error("no kind")
	}
	if len(d.Differences) == 0 {
		t.Error("no declared difference; every arm differs from a machine")
	}
	seen := map[string]bool{}
	for _, x := range d.Differences {
		if x.Name == "" || x.Text == "" || seen[x.Name] {
			t.Errorf("difference without a name of its own or without text: %+v", x)
		}
		seen[x.Name] = true
	}
	for name, reason := range d.NotApplicable {
		if reason == "" {
			t.Errorf("gate %s is not applicable for no reason", name)
		}
	}
	for k := range d.Settings {
		if k == "" {
			t.Error("a setting without a name")
		}
	}
	again := arm.Describe()
	if !reflect.DeepEqual(d, again) {
		t.Errorf("described differently the second time: %+v, then %+v", d, again)
	}
	for i := range d.Differences {
		d.Differences[i].Text = "changed"
	}
	if !reflect.DeepEqual(again, arm.Describe()) {
		t.Error("a caller can change what the arm says of itself")
	}
}

func testFacts(t *testing.T, h Harness) {
	r := bare(t, h)
	defer r.finish()
	facts := r.arm.Facts(r.ctx())
	if len(facts) == 0 {
		t.Error("no fact about the host or the arm's tools")
	}
	checkFacts(t, facts)
}

// checkFacts: known with a source, or unknown with a reason, under a name of its own.
func checkFacts(t *testing.T, facts []bench.Fact) {
	t.Helper()
	seen := map[string]bool{}
	for _, f := range facts {
		if f.Name == "" || seen[f.Name] {
			t.Errorf("fact without a name of its own: %+v", f)
		}
		seen[f.Name] = true
		if f.Known && f.Source == "" || !f.Known && (f.Reason == "" || f.Value != "") {
			t.Errorf("fact that is neither known with a source nor unknown with a reason: %+v", f)
		}
	}
}

func testMount(t *testing.T, h Harness) {
	r := begin(t, h)
	defer r.finish()
	checkFacts(t, r.root.Facts())
	if len(r.root.Facts()) == 0 {
		t.Error("the root says nothing about the image")
	}
	for range 2 {
		if err := r.root.Verify(r.ctx()); err != nil {
			t.Errorf("verify: %v", describe(err))
		}
	}
	for range 2 {
		if err := r.root.Release(r.ctx()); err != nil {
			t.Errorf("release: %v", describe(err))
		}
	}
}

// Case 17: an image that is not the pinned one is refused before anything is mounted.
func testMountWrongPin(t *testing.T, h Harness) {
	r := bare(t, h)
	defer r.finish()
	image := h.Manifest.Image
	image.Sha256 = bench.SHA256(strings.Repeat("0", 64))
	root, err := r.arm.Mount(r.ctx(), r.ws, bench.MountParams{Image: image})
	if !errors.Is(err, engine.ErrRefused) {
		t.Errorf("mount with a wrong pin: %v, want a refusal", describe(err))
	}
	if err == nil {
		r.root = root
	}
}

func testMountMissing(t *testing.T, h Harness) {
	r := bare(t, h)
	defer r.finish()
	image := h.Manifest.Image
	image.File = "no-such-image.qcow2"
	root, err := r.arm.Mount(r.ctx(), r.ws, bench.MountParams{Image: image})
	if err == nil {
		r.root = root
		t.Error("an image that is not there was mounted")
	}
}
