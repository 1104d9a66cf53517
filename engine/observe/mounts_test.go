package observe

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// As kernel 6.18 prints them, ids and order disturbed on purpose.
const slotTable = `80 74 0:51 / /m/a rw,relatime - tmpfs one rw
71 44 0:40 / / rw,relatime - overlay drums rw,lowerdir=/run/x\134\0542:/low,upperdir=/run/up,workdir=/run/work,index=on,uuid=null,nfs_export=on
79 71 0:50 / /sp\040ace\011and\134back rw,relatime shared:1 master:4 - tmpfs  rw,size=64k
74 71 0:46 / /m rw,nosuid,relatime - proc proc rw
90 71 0:60 /sub /bind ro,relatime - ext4 /dev/vda rw,discard
82 80 0:53 / /m/a rw,relatime - tmpfs three rw
81 80 0:52 / /m/a/b rw,relatime unbindable - tmpfs two rw
`

func parse(t *testing.T, table string) []bench.Mount {
	t.Helper()
	mounts, err := ParseMounts(strings.NewReader(table))
	if err != nil {
		t.Fatal(err)
	}
	return mounts
}

func TestParseMountsIsRaw(t *testing.T) {
	want := []bench.Mount{
		{Point: "/", Root: "/", Fstype: "overlay", Source: "drums", Options: []string{"rw", "relatime"},
			Super: []string{"rw", `lowerdir=/run/x\,2:/low`, "upperdir=/run/up", "workdir=/run/work", "index=on", "uuid=null", "nfs_export=on"}},
		{Point: "/bind", Root: "/sub", Fstype: "ext4", Source: "/dev/vda", Options: []string{"ro", "relatime"}, Super: []string{"rw", "discard"}},
		{Point: "/m", Root: "/", Fstype: "proc", Source: "proc", Options: []string{"rw", "nosuid", "relatime"}, Super: []string{"rw"}},
		{Point: "/m/a", Root: "/", Fstype: "tmpfs", Source: "one", Options: []string{"rw", "relatime"}, Super: []string{"rw"}},
		{Point: "/m/a/b", Root: "/", Fstype: "tmpfs", Source: "two", Options: []string{"rw", "relatime", "unbindable"}, Super: []string{"rw"}},
		{Point: "/m/a", Root: "/", Fstype: "tmpfs", Source: "three", Options: []string{"rw", "relatime"}, Super: []string{"rw"}},
		{Point: "/sp ace\tand\\back", Root: "/", Fstype: "tmpfs", Source: "", Options: []string{"rw", "relatime", "shared:1", "master:4"}, Super: []string{"rw", "size=64k"}},
	}
	if diff := cmp.Diff(want, parse(t, slotTable)); diff != "" {
		t.Fatal(diff)
	}
}

func TestNormaliseDropsWhatIsNamedAndNothingElse(t *testing.T) {
	raw := parse(t, slotTable)
	before := parse(t, slotTable)
	got := Normalise(raw)
	if diff := cmp.Diff(before, raw); diff != "" {
		t.Fatalf("the argument was changed: %s", diff)
	}
	if diff := cmp.Diff([]string{"rw", "uuid=null"}, got[0].Super); diff != "" {
		t.Error(diff)
	}
	last := got[len(got)-1]
	if diff := cmp.Diff([]string{"master", "relatime", "rw", "shared"}, last.Options); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"rw", "size=64k"}, last.Super); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(got, Normalise(got)); diff != "" {
		t.Errorf("not idempotent: %s", diff)
	}
	// The names are dropped for overlay only.
	other := Normalise([]bench.Mount{{Fstype: "ext4", Super: []string{"index=on", "lowerdir=/x"}}})
	if diff := cmp.Diff([]string{"index=on", "lowerdir=/x"}, other[0].Super); diff != "" {
		t.Error(diff)
	}
	for _, d := range Dropped {
		if d.Reason == "" {
			t.Errorf("%s %s has no reason", d.Field, d.Option)
		}
	}
}

// A slot and its restored sibling: other ids, devices, layers, peer groups, another order of lines.
func TestRestoredTableIsEqual(t *testing.T) {
	restored := `301 300 0:99 / /sp\040ace\011and\134back rw,relatime shared:7 master:9 - tmpfs  rw,size=64k
300 44 0:90 / / rw,relatime - overlay drums rw,lowerdir=/cp/layer:/low,upperdir=/new/up,workdir=/new/work,uuid=null
303 300 0:60 /sub /bind ro,relatime - ext4 /dev/vda rw,discard
302 300 0:96 / /m rw,nosuid,relatime - proc proc rw
304 302 0:91 / /m/a rw,relatime - tmpfs one rw
305 304 0:92 / /m/a/b rw,relatime unbindable - tmpfs two rw
306 304 0:93 / /m/a rw,relatime - tmpfs three rw
`
	if diff := cmp.Diff(Normalise(parse(t, slotTable)), Normalise(parse(t, restored))); diff != "" {
		t.Fatal(diff)
	}
}

func TestDifferencesStay(t *testing.T) {
	reference := Normalise(parse(t, slotTable))
	for name, edit := range map[string][2]string{
		"option":        {"rw,nosuid,relatime - proc", "rw,relatime - proc"},
		"super":         {"size=64k", "size=65k"},
		"overlay uuid":  {",uuid=null", ""},
		"source":        {"tmpfs two", "tmpfs zwei"},
		"root":          {"/sub /bind", "/other /bind"},
		"private":       {" shared:1", ""},
		"missing":       {"90 71 0:60 /sub /bind ro,relatime - ext4 /dev/vda rw,discard\n", ""},
		"swapped stack": {"tmpfs one rw", "tmpfs three rw"},
		// /m/a/b hangs below the upper mount on /m/a instead of the lower one.
		"below the other": {"81 80", "81 82"},
	} {
		t.Run(name, func(t *testing.T) {
			edited := strings.Replace(slotTable, edit[0], edit[1], 1)
			if name == "swapped stack" {
				edited = strings.Replace(strings.Replace(slotTable, "tmpfs one", "tmpfs 1", 1), "tmpfs three", "tmpfs one", 1)
				edited = strings.Replace(edited, "tmpfs 1", "tmpfs three", 1)
			}
			if edited == slotTable {
				t.Fatal("the edit changed nothing")
			}
			if cmp.Equal(reference, Normalise(parse(t, edited))) {
				t.Fatal("the difference was lost")
			}
		})
	}
}

func TestBadTables(t *testing.T) {
	for name, table := range map[string]string{
		"empty":        "",
		"short":        "71 44 0:40 / / rw\n",
		"no separator": "71 44 0:40 / / rw a b c d e f\n",
		"no id":        "x 44 0:40 / / rw - tmpfs t rw\n",
		"one id twice": "71 44 0:40 / / rw - tmpfs t rw\n71 44 0:40 / /b rw - tmpfs t rw\n",
		"cycle":        "71 44 0:40 / / rw - tmpfs t rw\n72 73 0:40 / /a rw - tmpfs t rw\n73 72 0:40 / /b rw - tmpfs t rw\n",
	} {
		t.Run(name, func(t *testing.T) {
			if mounts, err := ParseMounts(strings.NewReader(table)); !errors.Is(err, ErrFormat) {
				t.Fatalf("%v, %v", mounts, err)
			}
		})
	}
}

// The kernel's own text: the order is worked out from it, not from the golden table.
func TestRealStack(t *testing.T) {
	dir := t.TempDir()
	script := `set -e
mount --make-rprivate /
mount -t tmpfs base "$1"; cd "$1"; mkdir low up work m "sp ace"
mount -t overlay -o lowerdir=low,upperdir=up,workdir=work,index=on,nfs_export=on,uuid=null drums m
mount -t tmpfs spaced "sp ace"
mkdir m/a; mount -t tmpfs one m/a; mkdir m/a/b; mount -t tmpfs two m/a/b; mount -t tmpfs three m/a
cat /proc/self/mountinfo`
	out, err := exec.Command("unshare", "--mount", "sh", "-c", script, "sh", dir).Output()
	if err != nil {
		t.Fatalf("make mounts in a namespace of their own (needs root): %v", err)
	}
	var points, sources []string
	for _, m := range Normalise(parse(t, string(out))) {
		rest, ok := strings.CutPrefix(m.Point, dir)
		if !ok {
			continue
		}
		points, sources = append(points, rest), append(sources, m.Source)
		if m.Fstype == "overlay" && !slices.Equal(m.Super, []string{"rw", "uuid=null"}) {
			t.Errorf("super options of the overlay: %q", m.Super)
		}
	}
	if diff := cmp.Diff([]string{"", "/m", "/m/a", "/m/a/b", "/m/a", "/sp ace"}, points); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"base", "drums", "one", "two", "three", "spaced"}, sources); diff != "" {
		t.Error(diff)
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	own, err := ParseMounts(f)
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(own, func(m bench.Mount) bool { return strings.HasPrefix(m.Point, dir) }) {
		t.Error("the test's mounts leaked")
	}
}
