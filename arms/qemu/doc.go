// Package qemu is the arm of virtual machines: a slot is a QEMU process that
// boots the mounted image on an overlay of it, and QEMU's snapshots dump and
// restore it. An image whose disk is one file system boots with the kernel and
// the ramdisk that its recipe put into it, and with guestd; one with partitions
// boots itself (self.go).
//
// Always holds: a machine lives in a control group and a network namespace of
// its own, with a disk and a network card and nothing else of the host; QEMU's
// word that something was done is read back through QMP or from the guest; a
// restored machine's processes are frozen by its guest server until they were
// judged, and their clock was set; a machine whose state could not be loaded is
// ended, never left half-way.
//
// The host has no view of a guest's kernel: mounts, processes, locks, state and
// network are the guest's own words, read while its tree is frozen.
//
// # Why the method file does not use mapped-ram
//
// QEMU 9.0 and newer can write each page of memory to a place of its own in the
// migration file (mapped-ram). The method file does not use it, also where QEMU
// has it, but leaves the memory out of the stream (x-ignore-shared) and has it be
// a file:
//
//   - A mapped-ram file is read into anonymous memory at the load: each restored
//     machine reads all its used memory and keeps it as its own. Our memory file
//     is mapped copy-on-write: a restore reads no page before the guest does, and
//     siblings share all that they have not written. TestMethods
//     shows what one has of its own.
//   - What mapped-ram is better at, a save of bounded size while the machine runs
//     on and a load by several threads, does not occur here: the machine is
//     stopped at the dump, its memory is copied once, without its holes, and there
//     is nothing to load.
//
// Where x-ignore-shared does not apply, memory would not be shared; the arm starts
// every machine of this method on shared memory, so that does not occur either. A
// QEMU without it is refused. What QEMU has of the two is asked of it when a
// machine is provisioned, and is a fact of the run.
package qemu
