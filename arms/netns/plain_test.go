package netns

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/thread"
)

// fresh is a new network namespace, after f has worked in it.
func fresh(t *testing.T, f func() error) (path string) {
	t.Helper()
	var ns *os.File
	err := thread.Run(func() (err error) {
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			err = f()
		}
		if err == nil {
			ns, err = os.Open("/proc/thread-self/ns/net")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return fmt.Sprintf("/proc/self/fd/%d", ns.Fd())
}

// What a new namespace holds is told apart from whatever somebody changed in one.
func TestPlain(t *testing.T) {
	plain, err := Plain()
	if err != nil {
		t.Fatal(err)
	}
	if len(plain.Network.Links) == 0 || len(plain.Settings) != 64 {
		t.Fatalf("a new namespace holds %+v", plain)
	}
	path := fresh(t, func() error { return nil })
	down, err := ContentAt(path)
	if err != nil {
		t.Fatal(err)
	}
	if what := down.Difference(plain); !strings.HasPrefix(what, "links") {
		t.Errorf("lo is down, and that is %q", what)
	}
	up, err := RaiseAt(path)
	if err != nil {
		t.Fatal(err)
	}
	if what := up.Difference(plain); what != "" {
		t.Errorf("lo is up, and differs in %s", what)
	}
	again, err := ContentAt(path)
	if err != nil {
		t.Fatal(err)
	}
	if what := again.Difference(up); what != "" {
		t.Errorf("read again it differs in %s", what)
	}
	lo := func() netlink.Link {
		l, err := netlink.LinkByName("lo")
		if err != nil {
			t.Error(err)
		}
		return l
	}
	for want, f := range map[string]func() error{
		"links": func() error { return netlink.LinkSetMTU(lo(), 1400) },
		"addresses": func() error {
			return netlink.AddrAdd(lo(), &netlink.Addr{IPNet: netlink.NewIPNet([]byte{10, 9, 9, 9})})
		},
		"routes": func() error {
			dst := netlink.NewIPNet([]byte{10, 9, 9, 9})
			return netlink.RouteAdd(&netlink.Route{Dst: dst, Type: unix.RTN_BLACKHOLE})
		},
		"settings": func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/lo/rp_filter", []byte("2"), 0) },
	} {
		have, err := RaiseAt(fresh(t, func() error {
			if err := LoopbackUp(); err != nil {
				return err
			}
			return f()
		}))
		if err != nil {
			t.Errorf("%s: %v", want, err)
		} else if what := have.Difference(plain); !strings.HasPrefix(what, want) {
			t.Errorf("%s were changed, and the difference is %q", want, what)
		}
	}
	if _, err := RaiseAt("/proc/self/ns/mnt"); err == nil {
		t.Error("a mount namespace was raised")
	}
}
