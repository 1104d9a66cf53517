package netns

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/thread"
	"github.com/drumsbench/drumsbench/engine/observe"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Content is what a network namespace holds, as far as CRIU carries it.
type Content struct {
	Network bench.Network
	// Settings is the digest of the settings of its interfaces and of unix sockets below /proc/sys/net.
	Settings bench.SHA256
}

// Difference says in what two contents differ; empty for nothing.
func (c Content) Difference(other Content) string {
	a, b := c.Network, other.Network
	switch {
	case !reflect.DeepEqual(a.Links, b.Links):
		return fmt.Sprintf("links %v and %v", a.Links, b.Links)
	case !reflect.DeepEqual(a.Addresses, b.Addresses):
		return fmt.Sprintf("addresses %q and %q", a.Addresses, b.Addresses)
	case !reflect.DeepEqual(a.Routes, b.Routes):
		return fmt.Sprintf("routes %q and %q", a.Routes, b.Routes)
	case !reflect.DeepEqual(a.Rules, b.Rules):
		return fmt.Sprintf("rules %q and %q", a.Rules, b.Rules)
	case c.Settings != other.Settings:
		return "settings of interfaces or of unix sockets below /proc/sys/net"
	}
	return ""
}

// LoopbackUp brings the loopback interface of the calling thread's namespace up,
// with what the kernel gives it then, and reads that back.
func LoopbackUp() error { return loopbackUp() }

// Plain is what a new namespace holds, here and now, once its loopback interface is up.
func Plain() (c Content, err error) {
	err = thread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make network namespace: %w", err)
		}
		c, err = raise()
		return err
	})
	return c, err
}

// ContentAt reads the namespace that path names, such as /proc/PID/ns/net.
func ContentAt(path string) (c Content, err error) {
	err = inside(path, func() error {
		c, err = read()
		return err
	})
	return c, err
}

// RaiseAt brings up the loopback interface of the namespace that path names and says what that holds then.
func RaiseAt(path string) (c Content, err error) {
	err = inside(path, func() error {
		c, err = raise()
		return err
	})
	return c, err
}

// inside runs f on a thread that has entered the namespace and ends with f.
func inside(path string, f func() error) error {
	ns, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer ns.Close()
	return thread.Run(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", path, err)
		}
		return f()
	})
}

func raise() (Content, error) {
	if err := loopbackUp(); err != nil {
		return Content{}, err
	}
	return read()
}

// read reads the calling thread's namespace.
func read() (c Content, err error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return c, err
	}
	defer h.Close()
	if c.Network, err = observe.ReadNetwork(h); err != nil {
		return c, err
	}
	c.Settings, err = settings()
	return c, err
}

// settings digests what CRIU carries of /proc/sys/net, which shows the namespace of the
// thread that reads it (criu/net.c: devconfs4, devconfs6, unix_conf_entries).
func settings() (bench.SHA256, error) {
	sum := sha256.New()
	for _, dir := range []string{"/proc/sys/net/ipv4/conf", "/proc/sys/net/ipv6/conf", "/proc/sys/net/unix"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			value, err := os.ReadFile(path)
			switch {
			case errors.Is(err, unix.EIO) && strings.HasSuffix(path, "/stable_secret"): // none is set
			case err != nil:
				return err
			}
			fmt.Fprintf(sum, "%s %q\n", path, value)
			return nil
		})
		if err != nil && !(errors.Is(err, fs.ErrNotExist) && dir != "/proc/sys/net/ipv4/conf") { // a kernel without IPv6 has no such folder
			return "", fmt.Errorf("read settings of a network namespace: %w", err)
		}
	}
	return bench.SHA256(hex.EncodeToString(sum.Sum(nil))), nil
}
