package drums

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/netns"
	"github.com/drumsbench/drumsbench/arms/thread"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// witness is told who brought the network back.
type witness struct {
	*saboteur
	told bench.Fact
}

func (w *witness) Restore(ctx context.Context, ws *engine.Workspace, r engine.Root, cp engine.Checkpoint, p engine.Place, params bench.RestoreParams) (engine.Stopped, error) {
	got, err := w.saboteur.Restore(ctx, ws, r, cp, p, params)
	if s, ok := got.(*stopped); ok {
		w.told = s.now.loopback
	}
	return got, err
}

// A network that is more than a plain loopback interface is CRIU's to bring back, and says why.
func TestNetworkBroughtBackByCRIU(t *testing.T) {
	m := manifest(t, "rollouts=1")
	s := &witness{saboteur: &saboteur{Arm: newArm(t, m), provisioned: func(pid int) error {
		return inside(pid, "-n", "ip", "route", "add", "blackhole", "10.99.0.0/24")
	}}}
	res, _, _ := execute(t, s, m, "restore")
	if f := s.told; res.Verdict != engine.RunPassed || f.Value != "criu" || !strings.Contains(f.Source, "10.99.0.0/24") {
		t.Errorf("%s, brought back: %+v", res.Verdict, f)
	}
}

// A plain one is brought back by us, and only as it was.
func TestNetworkBroughtBackDirect(t *testing.T) {
	plain, err := netns.Plain()
	if err != nil {
		t.Fatal(err)
	}
	other := plain
	other.Network.Routes = append([]string{"blackhole 10.99.0.0/24"}, plain.Network.Routes...)
	of := func(c netns.Content, f bench.Fact) engine.Checkpoint {
		f.Name = plainLoopback
		return engine.Checkpoint{Handle: bench.Checkpoint{Facts: []bench.Fact{f}, Reference: bench.Reference{Network: c.Network}}}
	}
	known := bench.Fact{Known: true, Value: string(plain.Settings)}
	for name, c := range map[string]struct {
		setting      string
		cp           engine.Checkpoint
		by, why, err string
	}{
		"plain":          {"direct", of(plain, known), "direct", "equal", ""},
		"other settings": {"direct", of(plain, bench.Fact{Known: true, Value: strings.Repeat("0", 64)}), "", "", "settings"},
		"other routes":   {"direct", of(other, known), "", "", "routes"},
		"not plain":      {"direct", of(plain, bench.Fact{Reason: "it has a firewall"}), "criu", "it has a firewall", ""},
		"old checkpoint": {"direct", engine.Checkpoint{}, "criu", "says nothing", ""},
		"not asked for":  {"criu", of(plain, known), "criu", "settings", ""},
	} {
		p, now := &place{arm: New(bench.DrumsSettings{Loopback: c.setting}, criu.Tool{}, nil)}, &tenancy{}
		err := error(nil)
		if bring := p.network(now, c.cp); bring != nil {
			err = thread.Run(func() error {
				if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
					t.Error(err)
				}
				return bring("/proc/thread-self/ns/net")
			})
		}
		if got := fmt.Sprint(err); c.err == "" && err != nil || !strings.Contains(got, c.err) || c.err != "" && err == nil {
			t.Errorf("%s: %v, want %q", name, err, c.err)
		}
		if now.loopback.Value != c.by || !strings.Contains(now.loopback.Source, c.why) {
			t.Errorf("%s: brought back %+v", name, now.loopback)
		}
	}
}

// A rule of a firewall, or a tracked connection, is not plain.
func TestPlainImages(t *testing.T) {
	plain := bench.Fact{Name: plainLoopback, Known: true, Value: "x", View: engine.ViewStopped}
	for name, c := range map[string]struct {
		size  int
		plain bool
	}{"nftables-10.img": {0, true}, "iptables-10.img": {8, true}, "nftables-11.img": {60, false}, "netns-ct-10.img": {9, false}, "netdev-10.img": {500, true}} {
		if f := plainImages(plain, criu.ImagesIn(sized(name, c.size))); f.Known != c.plain {
			t.Errorf("%s of %d bytes: %+v", name, c.size, f)
		}
	}
	if f := plainImages(bench.Fact{Reason: "as it was"}, criu.ImagesIn(sized("netdev-10.img", 9))); f.Known || f.Reason != "as it was" {
		t.Errorf("%+v", f)
	}
}

func sized(name string, n int) fstest.MapFS { return fstest.MapFS{name: {Data: make([]byte, n)}} }
