package drums

import (
	"errors"
	"fmt"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/netns"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Facts about a slot's network.
const (
	// plainLoopback, of a checkpoint: the digest of the settings of a network namespace that holds nothing
	// but what every new one does once its loopback interface is up. Unknown where it holds something else.
	plainLoopback = "network.plain-loopback"
	// loopbackBy, of a restore: who brought the network back, direct or criu.
	loopbackBy = "network.brought-back-by"
)

// plainNetwork compares the network of a tree that stands still with a new namespace's.
func plainNetwork(pid int) bench.Fact {
	view := engine.ViewStopped
	have, err := netns.ContentAt(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return engine.Unknown[string](err.Error(), view).Fact(plainLoopback)
	}
	plain, err := netns.Plain()
	if err != nil {
		return engine.Unknown[string](err.Error(), view).Fact(plainLoopback)
	}
	if what := have.Difference(plain); what != "" {
		return engine.Unknown[string]("the slot's network is not a new namespace's: "+what, view).Fact(plainLoopback)
	}
	return engine.Known(string(have.Settings), "netlink and /proc/sys/net in the slot, compared with a new namespace", view).Fact(plainLoopback)
}

// plainImages keeps the fact where CRIU's images hold no more of the network either:
// no rule of a firewall, no tracked connection.
func plainImages(f bench.Fact, img criu.Images) bench.Fact {
	if !f.Known {
		return f
	}
	images, err := img.Network()
	if err != nil {
		return engine.Unknown[string](err.Error(), f.View).Fact(plainLoopback)
	}
	for _, i := range images {
		switch i.Kind {
		case "iptables", "ip6tables", "nftables", "netns-ct", "netns-exp":
			// An image without an entry is nothing, or its magic numbers only: 8 bytes.
			if i.Size > 8 {
				return engine.Unknown[string](fmt.Sprintf("criu's %s image has %d bytes", i.Kind, i.Size), f.View).Fact(plainLoopback)
			}
		}
	}
	return f
}

// network is how the engine brings a restored tenancy's network back; nil leaves it to criu.
func (p *place) network(t *tenancy, cp engine.Checkpoint) func(path string) error {
	by := func(who, source string) {
		t.loopback = engine.Known(who, source, engine.ViewHost).Fact(loopbackBy)
	}
	if p.arm.settings.Loopback == "criu" {
		by("criu", "the arm's settings")
		return nil
	}
	var settings bench.SHA256
	why := "the checkpoint says nothing of it"
	for _, f := range cp.Handle.Facts {
		if f.Name == plainLoopback {
			settings, why = bench.SHA256(f.Value), f.Reason
		}
	}
	if settings == "" {
		by("criu", why)
		return nil
	}
	want := netns.Content{Network: cp.Handle.Reference.Network, Settings: settings}
	return func(path string) error {
		have, err := netns.RaiseAt(path)
		if err != nil {
			return err
		}
		if what := want.Difference(have); what != "" {
			return &engine.Error{Op: "bring the loopback interface back", Err: errors.New("it is not as in the checkpoint: " + what),
				Hint: `set loopback: "criu" on the drums arm, or make the checkpoint again`}
		}
		by("direct", "netlink and /proc/sys/net in the slot, equal to the checkpoint's")
		return nil
	}
}
