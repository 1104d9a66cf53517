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
// # What is used of a newer QEMU
//
// The newest QEMU in PATH is used that is not older than 7.2, or the one that the
// operator names (Variable) or the manifest pins. What its migration can do is asked
// of it and not taken from its version; both are facts of the run.
//
// QEMU 9.0 and newer can write each page of memory to a place of its own in the
// migration file (mapped-ram). It is used where the memory of a machine is a copy of
// its own, which is at the dump of one that was restored by the method file (branch.go).
// It is not the form in which the method file keeps memory: a mapped-ram file is read
// into anonymous memory at the load, so that each restored machine reads all its used
// memory and keeps it as its own. Our memory file is left out of the stream
// (x-ignore-shared) and mapped copy-on-write: a restore reads no page before the guest
// does, and siblings share all that they have not written. TestMethods shows what one
// has of its own.
//
// A QEMU without x-ignore-shared is refused for the method file.
package qemu
