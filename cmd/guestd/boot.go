package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
)

// The boot of a virtual machine: guestd as /init of the initial ramdisk, which
// package arms/initrd makes and describes.
const (
	ramdiskInit = "/init"
	newRoot     = "/newroot"
	rootDisk    = "vda"
	card        = "eth0"
	// diskTime is how long the disk may take to appear once its driver is loaded.
	diskTime = 20 * time.Second
)

// isRamdiskInit says whether the kernel started us out of its initial ramdisk.
func isRamdiskInit() bool { return os.Getpid() == 1 && os.Args[0] == ramdiskInit }

// runBoot makes the image's disk the root and becomes the image's own guestd. It
// returns only to say why it could not.
func runBoot() error {
	unix.Umask(0o022)
	// As on the other arms the first process leads a session of its own.
	if _, err := unix.Setsid(); err != nil {
		return fmt.Errorf("begin a session: %w", err)
	}
	for _, m := range []struct{ fstype, at string }{{"proc", "/proc"}, {"sysfs", "/sys"}} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.fstype, m.at, m.fstype, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	config, err := readMachine(proto.MachineFile)
	if err != nil {
		return err
	}
	if err := loadModules("/modules"); err != nil {
		return err
	}
	if err := mountDisk(); err != nil {
		return err
	}
	if err := mountSystem(newRoot); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(config.Hostname)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	if err := networkUp(config); err != nil {
		return err
	}
	guest, err := json.Marshal(config.Guest)
	if err != nil {
		return err
	}
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	if err := switchRoot(); err != nil {
		return err
	}
	// Input is the slot's null device; both outputs stay the console, which is nowhere in the new root.
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := unix.Dup3(int(null.Fd()), 0, 0); err != nil {
		return fmt.Errorf("close input: %w", err)
	}
	null.Close()
	env := []string{
		proto.ConfigVariable + "=" + string(guest), proto.MachineVariable + "=" + string(text),
		"PATH=" + searchPath, "HOME=" + string(config.Guest.Home), "LANG=C.UTF-8",
	}
	program := []string{"/usr/local/bin/guestd", "init"}
	if exec := config.Guest.Server.Exec; len(exec) > 0 {
		program = exec
	}
	return fmt.Errorf("start %s of the image: %w", program[0], unix.Exec(program[0], program, env))
}

func readMachine(path string) (proto.Machine, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return proto.Machine{}, fmt.Errorf("read the machine's configuration (was it appended to the initial ramdisk?): %w", err)
	}
	return parseMachine(text)
}

func parseMachine(text []byte) (proto.Machine, error) {
	var config proto.Machine
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&config); err != nil {
		return config, fmt.Errorf("decode the machine's configuration: %w", err)
	}
	return config, nil
}

// loadModules loads every module of a folder, in the order of their names.
func loadModules(dir string) error {
	paths, err := filepath.Glob(filepath.Join(dir, "*.ko"))
	if err != nil {
		return err
	}
	slices.Sort(paths)
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("load module %s: %w", filepath.Base(path), err)
		}
	}
	return nil
}

// mountDisk mounts the first virtio disk on newRoot.
func mountDisk() error {
	device := "/sys/class/block/" + rootDisk + "/dev"
	var text []byte
	for end := time.Now().Add(diskTime); ; time.Sleep(5 * time.Millisecond) {
		var err error
		if text, err = os.ReadFile(device); err == nil {
			break
		}
		if time.Now().After(end) {
			disks, _ := filepath.Glob("/sys/class/block/*")
			return fmt.Errorf("there is no disk %s after %s, only %v", rootDisk, diskTime, disks)
		}
	}
	major, minor, _ := strings.Cut(strings.TrimSpace(string(text)), ":")
	a, err1 := strconv.ParseUint(major, 10, 32)
	b, err2 := strconv.ParseUint(minor, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("read %s: %w", device, err)
	}
	// The name is the source in the slot's mount table.
	node := "/dev/" + rootDisk
	if err := os.MkdirAll("/dev", 0o755); err != nil {
		return err
	}
	if err := unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(uint32(a), uint32(b)))); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make %s: %w", node, err)
	}
	if err := os.MkdirAll(newRoot, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(node, newRoot, "ext4", 0, ""); err != nil {
		return fmt.Errorf("mount %s as ext4: %w", node, err)
	}
	return nil
}

// mountSystem makes the mounts of a slot of the drums arm below root; proc is for init.
func mountSystem(root string) error {
	const hardened = unix.MS_NOSUID | unix.MS_NOEXEC
	for _, m := range []struct {
		at, fstype string
		flags      uintptr
		data       string
	}{
		{"sys", "sysfs", hardened | unix.MS_NODEV | unix.MS_RDONLY, ""},
		{"dev", "tmpfs", hardened, "mode=755,size=1m"},
		{"dev/pts", "devpts", hardened, "newinstance,ptmxmode=0666,mode=620,gid=5"},
		{"dev/shm", "tmpfs", hardened | unix.MS_NODEV, "mode=1777,size=64m"},
	} {
		at := filepath.Join(root, m.at)
		if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := unix.Mount(m.fstype, at, m.fstype, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s on /%s: %w", m.fstype, m.at, err)
		}
	}
	old := unix.Umask(0)
	defer unix.Umask(old)
	for name, device := range map[string]uint64{
		"null": unix.Mkdev(1, 3), "zero": unix.Mkdev(1, 5), "full": unix.Mkdev(1, 7), "random": unix.Mkdev(1, 8), "urandom": unix.Mkdev(1, 9), "tty": unix.Mkdev(5, 0),
	} {
		if err := unix.Mknod(filepath.Join(root, "dev", name), unix.S_IFCHR|0o666, int(device)); err != nil {
			return fmt.Errorf("make /dev/%s: %w", name, err)
		}
	}
	for name, target := range map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink(target, filepath.Join(root, "dev", name)); err != nil {
			return err
		}
	}
	return nil
}

// networkUp brings lo up, and the card where the machine has an address.
func networkUp(config proto.Machine) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open a route socket: %w", err)
	}
	defer h.Close()
	up := func(name string) (netlink.Link, error) {
		link, err := h.LinkByName(name)
		if err != nil {
			return nil, fmt.Errorf("find %s: %w", name, err)
		}
		if err := h.LinkSetUp(link); err != nil {
			return nil, fmt.Errorf("bring %s up: %w", name, err)
		}
		return link, nil
	}
	if _, err := up("lo"); err != nil {
		return err
	}
	if len(config.Addresses) == 0 {
		return nil
	}
	// Else the kernel gives the card addresses that nobody configured.
	err = os.WriteFile("/proc/sys/net/ipv6/conf/"+card+"/disable_ipv6", []byte("1"), 0)
	if err != nil {
		return fmt.Errorf("switch IPv6 off on %s (has the machine a network card?): %w", card, err)
	}
	link, err := up(card)
	if err != nil {
		return err
	}
	for _, text := range config.Addresses {
		address, err := netlink.ParseAddr(text)
		if err != nil {
			return fmt.Errorf("address %q: %w", text, err)
		}
		if err := h.AddrAdd(link, address); err != nil {
			return fmt.Errorf("give %s the address %s: %w", card, text, err)
		}
	}
	if config.Gateway == "" {
		return nil
	}
	gateway, err := netlink.ParseIPNet(config.Gateway + "/32")
	if err != nil {
		return fmt.Errorf("gateway %q: %w", config.Gateway, err)
	}
	if err := h.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.IP}); err != nil {
		return fmt.Errorf("add the default route through %s: %w", config.Gateway, err)
	}
	return nil
}

// switchRoot makes newRoot the root and lets the ramdisk's files go: they would be
// memory of the machine, and of each of its snapshots.
func switchRoot() error {
	for _, at := range []string{"/proc", "/sys"} {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", at, err)
		}
	}
	entries, err := os.ReadDir("/")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if at := "/" + e.Name(); at != newRoot {
			if err := os.RemoveAll(at); err != nil {
				return fmt.Errorf("let the ramdisk go: %w", err)
			}
		}
	}
	if err := unix.Chdir(newRoot); err != nil {
		return fmt.Errorf("enter new root: %w", err)
	}
	// A ramdisk is the kernel's rootfs, which pivot_root(2) refuses to move.
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move new root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	return unix.Chdir("/")
}

// powerOff ends the machine; it returns only where that fails.
func powerOff() error {
	unix.Sync()
	return fmt.Errorf("power off: %w", unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
}
