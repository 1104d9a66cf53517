package doctor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// probeLoop shows a file of a page as a read-only loop device that detaches
// itself, and compares what it reads.
func probeLoop(dir string) error {
	return inTemporary(dir, func(dir string) error {
		want := bytes.Repeat([]byte("drums!\n."), 512)
		name := filepath.Join(dir, "backing")
		if err := os.WriteFile(name, want, 0o600); err != nil {
			return err
		}
		backing, err := os.Open(name)
		if err != nil {
			return err
		}
		defer backing.Close()
		control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer control.Close()
		var device *os.File
		for range 50 { // another process may take the free device that we were told of
			if device, err = freeLoop(control, backing, dir); device != nil || err != nil {
				break
			}
		}
		switch {
		case err != nil:
			return err
		case device == nil:
			return errors.New("no loop device stays free")
		}
		defer device.Close()
		have := make([]byte, len(want))
		if _, err := device.ReadAt(have, 0); err != nil {
			return err
		}
		if !bytes.Equal(have, want) {
			return fmt.Errorf("%s does not show the file: %w", device.Name(), errNotSeen)
		}
		return nil
	})
}

// freeLoop binds a free device to the file; nil if somebody else was faster. A
// device without a node in /dev, as in a container, gets one in dir.
func freeLoop(control, backing *os.File, dir string) (*os.File, error) {
	number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return nil, fmt.Errorf("ask for a free loop device: %w", err)
	}
	node := fmt.Sprintf("/dev/loop%d", number)
	if _, err := os.Lstat(node); err != nil {
		var major, minor uint32
		text, err := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/dev", number))
		if err == nil {
			_, err = fmt.Sscanf(string(text), "%d:%d", &major, &minor)
		}
		if err != nil {
			return nil, err
		}
		node = filepath.Join(dir, filepath.Base(node))
		if err := unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(major, minor))); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, &os.PathError{Op: "mknod", Path: node, Err: err}
		}
	}
	device, err := os.OpenFile(node, os.O_RDONLY, 0)
	if errors.Is(err, unix.ENXIO) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	config := unix.LoopConfig{Fd: uint32(backing.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_READ_ONLY | unix.LO_FLAGS_AUTOCLEAR}}
	if err := unix.IoctlLoopConfigure(int(device.Fd()), &config); err != nil {
		device.Close()
		if errors.Is(err, unix.EBUSY) {
			return nil, nil
		}
		return nil, fmt.Errorf("LOOP_CONFIGURE of %s: %w", node, err)
	}
	return device, nil
}

// Requests of /dev/kvm (uapi/linux/kvm.h: _IO(0xAE, n)), the same on every machine.
const (
	kvmGetAPIVersion = 0xAE00
	kvmCreateVM      = 0xAE01
	kvmCreateVCPU    = 0xAE41
)

// probeKVM makes a machine with a processor: that the device is there, and even
// that it answers, says little.
func probeKVM() (k KVM, err error) {
	fd, err := unix.Open("/dev/kvm", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return k, &os.PathError{Op: "open", Path: "/dev/kvm", Err: err}
	}
	defer unix.Close(fd)
	if k.API, err = unix.IoctlRetInt(fd, kvmGetAPIVersion); err != nil {
		k.Err = fmt.Errorf("KVM_GET_API_VERSION: %w", err)
		return k, nil
	}
	vm, err := unix.IoctlRetInt(fd, kvmCreateVM)
	if err != nil {
		k.Err = fmt.Errorf("KVM_CREATE_VM: %w", err)
		return k, nil
	}
	defer unix.Close(vm)
	k.VM = true
	vcpu, err := unix.IoctlRetInt(vm, kvmCreateVCPU)
	if err != nil {
		k.Err = fmt.Errorf("KVM_CREATE_VCPU: %w", err)
		return k, nil
	}
	k.VCPU = true
	return k, unix.Close(vcpu)
}
