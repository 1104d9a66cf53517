//go:build linux && !elsewhere

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/image"
	"github.com/drumsbench/drumsbench/arms/oci"
	"github.com/drumsbench/drumsbench/arms/tree"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

var (
	peersOut    = flag.String("peers-out", "", "file that BenchmarkPeers writes its measurements to")
	peersRounds = flag.Int("peers-rounds", 3, "how often each peer has its turn")
	peersEach   = flag.Int("peers-each", 8, "resets of each peer in a turn; an emulated one has a quarter of them")
	peersQEMU   = flag.Bool("peers-qemu", true, "whether QEMU, which is emulated where there is no KVM, has a turn")
)

// BenchmarkPeers times resets of one tree, that of manifests/locks, by everybody who can: through the engine on each
// arm, by bare loops of criu and runc, by podman where it is installed, and by QEMU in place, which is emulated here. All
// in turn, so that a host that drifts meets them alike. scripts/bench-peers prepares and calls it.
func BenchmarkPeers(b *testing.B) {
	for b.Loop() {
		p := benchPeers(b, *peersRounds, *peersEach, true)
		for _, s := range p.Sides {
			b.Logf("%-12s median %.1f ms of %d", s.Name, median(slices.Clone(s.Resets)), len(s.Resets))
		}
		for _, a := range p.Absent {
			b.Logf("%-12s %s", a.Name, a.Why)
		}
		if *peersOut == "" {
			continue
		}
		data, err := json.MarshalIndent(p.Peers, "", "  ")
		if err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(*peersOut, append(data, '\n'), 0o644); err != nil {
			b.Fatal(err)
		}
	}
}

// peers is what is being measured.
type peers struct{ bench.Peers }

func (p *peers) add(name, title string, emulated bool, ms []float64) {
	i := slices.IndexFunc(p.Sides, func(s bench.PeerSide) bool { return string(s.Name) == name })
	if i < 0 {
		i = len(p.Sides)
		p.Sides = append(p.Sides, bench.PeerSide{Name: bench.Name(name), Title: title, Emulated: emulated, Resets: []float64{}})
	}
	p.Sides[i].Resets = append(p.Sides[i].Resets, ms...)
}

func (p *peers) resets(name string) []float64 {
	for _, s := range p.Sides {
		if string(s.Name) == name {
			return s.Resets
		}
	}
	return nil
}

// benchPeers measures rounds of so many resets each; all asks for podman and QEMU too.
func benchPeers(b *testing.B, rounds, each int, all bool) *peers {
	ctx := context.Background()
	state := realState()
	manifest := filepath.Join(state, "manifests", "manifests", "locks")
	if _, err := os.Stat(manifest); err != nil {
		b.Fatalf("%v: run the script, which prepares the image", err)
	}
	tool, err := criu.Locate(ctx, state)
	if err != nil {
		b.Fatal(err)
	}
	kdat, err := tool.Kdat(filepath.Join(state, "cache", "criu"))
	if err != nil {
		b.Fatal(err)
	}
	runc, err := oci.Locate(ctx, state)
	if err != nil {
		b.Fatal(err)
	}
	p := &peers{bench.Peers{ApiVersion: engine.APIVersion, Time: bench.Time(time.Now().UTC().Format(time.RFC3339Nano)), Absent: []bench.PeerAbsent{}}}
	run := func(arm string, n int, tags ...string) string {
		runs := filepath.Join(b.TempDir(), "runs")
		args := []string{"run", "--arm", arm, "--reset", "restore", "-t", "rollouts=" + strconv.Itoa(n), "--out", runs}
		for _, t := range tags {
			args = append(args, "-t", t)
		}
		if out, err := exec.Command(filepath.Join(state, "bin", "drumsbench"), append(args, manifest)...).CombinedOutput(); err != nil {
			b.Fatalf("%v\n%s", err, out)
		}
		dir := filepath.Join(runs, arm+"-restore")
		switch r := peerRecord(b, dir); {
		case p.Host == nil:
			p.Host, p.Engine = r.Facts, r.Engine
		case arm == "oci" && !slices.ContainsFunc(p.Host, runcFact):
			p.Host = append(p.Host, slices.DeleteFunc(r.Facts, func(f bench.Fact) bool { return !runcFact(f) })...)
		}
		return dir
	}
	podman, podmanErr := exec.LookPath("podman")
	for range rounds {
		dir := run("drums", each+1)
		p.add("drums", "drumsbench, drums arm", false, resets(b, dir))
		p.add("drums-bare", "criu in a shell loop", false, bareResets(b, []string{"testdata/bench/bare-reset", tool.Path, kdat.File}, state, dir, each))
		dir = run("oci", each+1)
		p.add("oci", "drumsbench, oci arm", false, resets(b, dir))
		p.add("oci-bare", "runc restore in a shell loop", false, bareResets(b, []string{"testdata/bench/bare-runc", runc.Path, tool.Path, kdat.File}, state, dir, each))
		if !all {
			continue
		}
		if podmanErr == nil {
			ms, err := podmanResets(b, tool.Path, state, dir, each)
			if err != nil {
				podmanErr = err
			} else {
				p.add("podman", "podman container restore ("+podman+")", false, ms)
			}
		}
		if !*peersQEMU {
			continue
		}
		p.add("qemu", "QEMU, snapshot loaded in place, through the qemu arm", true, resets(b, run("qemu", max(each/4, 2), "accel=tcg", "snapshot=inplace")))
	}
	if all {
		if podmanErr != nil {
			p.Absent = append(p.Absent, bench.PeerAbsent{Name: "podman", Why: podmanErr.Error()})
		}
		if !*peersQEMU {
			p.Absent = append(p.Absent, bench.PeerAbsent{Name: "qemu", Why: "it was not asked for"})
		}
		p.Memcpy, p.Fault = limits(b)
	}
	return p
}

func runcFact(f bench.Fact) bool { return strings.HasPrefix(f.Name, "runc.") }

func peerRecord(b *testing.B, run string) (r bench.Record) {
	data, err := os.ReadFile(filepath.Join(run, record.RecordFile))
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// podmanResets has podman reset a container of the same image and guest server.
func podmanResets(b *testing.B, criuPath, state, run string, n int) (ms []float64, err error) {
	m := readManifest(b, run)
	dir := b.TempDir()
	err = withImage(b, state, dir, m, func(root string) error {
		env, err := tree.GuestEnv(m.Guest)
		if err != nil {
			return err
		}
		file := filepath.Join(dir, "environment")
		if err := os.WriteFile(file, []byte(strings.Join(env, "\n")+"\n"), 0o600); err != nil {
			return err
		}
		args := append([]string{"-m", "--propagation", "private", "testdata/bench/bare-podman", criuPath, root, filepath.Join(dir, "podman"), file, strconv.Itoa(n)}, m.Guest.Server.Exec...)
		cmd := exec.Command("unshare", args...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			said := strings.TrimSpace(stderr.String())
			return fmt.Errorf("%w: %s", err, said[max(0, len(said)-300):])
		}
		ms = nanoseconds(b, out)
		return nil
	})
	return ms, err
}

// limits of the host that no restore is below: what a copy of memory gives in bytes a second, and what the first touch
// of a page costs in nanoseconds.
func limits(b *testing.B) (memcpy, fault float64) {
	const size = 256 << 20
	var copies, faults []float64
	from := make([]byte, size)
	for i := 0; i < size; i += 4096 {
		from[i] = 1
	}
	for range 7 {
		m, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			b.Fatal(err)
		}
		if err := unix.Madvise(m, unix.MADV_NOHUGEPAGE); err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		for i := 0; i < size; i += 4096 {
			m[i] = 1
		}
		faults = append(faults, float64(time.Since(start).Nanoseconds())/(size/4096))
		start = time.Now()
		copy(m, from)
		copies = append(copies, size/time.Since(start).Seconds())
		if err := unix.Munmap(m); err != nil {
			b.Fatal(err)
		}
	}
	return median(copies), median(faults)
}

func readManifest(b *testing.B, run string) (m bench.Manifest) {
	data, err := os.ReadFile(filepath.Join(run, record.ManifestFile))
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil {
		b.Fatal(err)
	}
	return m
}

// withImage mounts a manifest's image for the time of fn.
func withImage(b *testing.B, state, dir string, m bench.Manifest, fn func(root string) error) error {
	ledger, err := record.CreateLedger(filepath.Join(dir, "ledger.jsonl"))
	if err != nil {
		b.Fatal(err)
	}
	defer ledger.Close()
	ws := &engine.Workspace{Run: dir, Work: filepath.Join(dir, "work"), State: state, ID: "drumsbarebench", Ledger: ledger}
	if err := ws.MakeWork(); err != nil {
		b.Fatal(err)
	}
	mounted, err := image.Attach(context.Background(), ws, image.AttachOptions{
		Path: filepath.Join(state, "images", m.Image.File), Image: m.Image, Method: image.MethodRaw, CacheDir: image.CacheDir(state),
	})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := mounted.Release(context.Background()); err != nil {
			b.Error(err)
		}
	}()
	return fn(mounted.Dir())
}

func nanoseconds(b *testing.B, out []byte) (ms []float64) {
	for _, line := range strings.Fields(string(out)) {
		ns, err := strconv.ParseInt(line, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		ms = append(ms, float64(ns)/1e6)
	}
	return ms
}
