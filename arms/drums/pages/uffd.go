package pages

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/criu"
)

// Requests and events of a userfaultfd (include/uapi/linux/userfaultfd.h); the same on every machine that we run on.
const (
	uffdioUnregister = 0x8010aa01
	uffdioWake       = 0x8010aa02
	uffdioCopy       = 0xc028aa03
	uffdioZeropage   = 0xc020aa04

	eventFault  = 0x12
	eventFork   = 0x13
	eventRemap  = 0x14
	eventRemove = 0x15
	eventUnmap  = 0x16

	messageSize = 32
)

// descriptor is a userfaultfd.
type descriptor int

func (d descriptor) ioctl(request uintptr, arg unsafe.Pointer) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(d), request, uintptr(arg))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
			continue
		}
		return errno
	}
}

// copy fills pages of r, which lie in one mapping, from src. It returns how many bytes were filled, also with an error.
func (d descriptor) copy(r criu.Range, src []byte) (uint64, error) {
	arg := struct{ dst, src, length, mode, copied uint64 }{r.Start, uint64(uintptr(unsafe.Pointer(&src[0]))), r.End - r.Start, 0, 0}
	err := d.ioctl(uffdioCopy, unsafe.Pointer(&arg))
	if done := int64(arg.copied); done > 0 {
		return uint64(done), err
	}
	return 0, err
}

// zero fills pages of r with the kernel's zero page.
func (d descriptor) zero(r criu.Range) error {
	arg := struct{ start, length, mode, zeroed uint64 }{r.Start, r.End - r.Start, 0, 0}
	return d.ioctl(uffdioZeropage, unsafe.Pointer(&arg))
}

// wake has whoever waits for a page of r look again.
func (d descriptor) wake(r criu.Range) error {
	arg := struct{ start, length uint64 }{r.Start, r.End - r.Start}
	return d.ioctl(uffdioWake, unsafe.Pointer(&arg))
}

// unregister has the kernel fill r itself from now on, with zeros.
func (d descriptor) unregister(r criu.Range) error {
	arg := struct{ start, length uint64 }{r.Start, r.End - r.Start}
	return d.ioctl(uffdioUnregister, unsafe.Pointer(&arg))
}

// alive says whether the memory that the descriptor is of is still there: a copy to where nothing can be mapped says which it is.
func (d descriptor) alive() bool {
	var page [8]byte
	_, err := d.copy(criu.Range{Start: unreachable, End: unreachable + criu.PageSize}, page[:])
	return !errors.Is(err, unix.ESRCH)
}

// unreachable is the lowest address that the kernel looks at (vm.mmap_min_addr is 65536 at most as distributions set it).
const unreachable = 65536

// event is one message of the kernel's.
type event struct {
	kind byte
	// fault: the address. remap: from and to. remove, unmap: the range.
	at, to uint64
	length uint64
	// fork: the child's descriptor.
	child descriptor
}

// read takes the next event; ok is false where there is none.
func (d descriptor) read() (e event, ok bool, err error) {
	var b [messageSize]byte
	for {
		n, err := unix.Read(int(d), b[:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return e, false, nil
		case err != nil:
			return e, false, fmt.Errorf("read userfaultfd: %w", err)
		case n != messageSize:
			return e, false, fmt.Errorf("read userfaultfd: %d bytes", n)
		}
		break
	}
	word := func(i int) uint64 { return binary.NativeEndian.Uint64(b[8+8*i:]) }
	e.kind = b[0]
	switch e.kind {
	case eventFault:
		e.at = word(1) &^ (criu.PageSize - 1)
	case eventFork:
		e.child = descriptor(binary.NativeEndian.Uint32(b[8:]))
	case eventRemap:
		e.at, e.to, e.length = word(0), word(1), word(2)
	case eventRemove, eventUnmap:
		e.at, e.length = word(0), word(1)-word(0)
	default:
		return e, false, fmt.Errorf("userfaultfd has an event %#x that nobody asked for", e.kind)
	}
	return e, true, nil
}
