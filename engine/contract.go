package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// NetworkPreserved names the fact by which an arm says, in a checkpoint's
// handle, how the network comes back; its value is the evidence.
const NetworkPreserved = "network-preserved"

// Accelerator names the fact by which an arm says what runs the guest's
// instructions: Native, kvm, or tcg, which emulates them.
const (
	Accelerator = "accelerator"
	// Native is the host's processor itself: the slot is processes of the host.
	Native = "native"
)

// GuestViewDifference names the difference by which an arm says that the host
// cannot see into its slots: what is read of a stopped slot has the guest's view.
const GuestViewDifference = "guest-view"

// Emulated says whether a run's guest ran on emulated instructions, by its
// facts, those of steps included: its numbers are marked so wherever they stand.
func Emulated(facts []bench.Fact) bool {
	return slices.ContainsFunc(facts, func(f bench.Fact) bool {
		return f.Known && f.Value == "tcg" && (f.Name == Accelerator || strings.HasSuffix(f.Name, "/"+Accelerator))
	})
}

// NativeAccelerator is the fact of an arm whose slots are processes of the host.
func NativeAccelerator() bench.Fact {
	return bench.Fact{Name: Accelerator, Known: true, Value: Native, Source: "the slot's processes are the host's", View: ViewHost}
}

// Facts of a checkpoint's handle by which a later run knows whether it can use it.
const (
	// EngineDigest is the SHA-256 of the program that sealed it.
	EngineDigest = "engine.sha256"
	// ServerDigest is the SHA-256 of the guest server's program, read from outside.
	ServerDigest = "guestd.sha256"
)

// LockSubject names a lock for a person: process, file and range.
func LockSubject(l bench.Lock) string {
	end := string(l.End)
	if end == "-1" {
		end = "EOF"
	}
	return fmt.Sprintf("pid %d %s %s lock on %s bytes %s-%s", l.Pid, l.Type, l.Mode, l.Path, l.Start, end)
}

// carried are the file systems whose mounts a checkpoint carries when their
// root is the file system's own; an overlay only as the slot's root.
var carried = map[string]bool{"proc": true, "sysfs": true, "tmpfs": true, "devpts": true, "mqueue": true}

// MountContract names each mount that is not the slot's own. A bind of a host
// file or device "doesn't have a proper root mount" for CRIU, and a recursive
// /sys brings in configfs, bpf and others that it cannot dump. A part of proc that
// lies over itself, read-only, is the slot's own. allowed are mount points that an
// arm's runtime must bind and declares.
func MountContract(mounts []bench.Mount, allowed ...string) []bench.Finding {
	pass := map[string]bool{}
	for _, a := range allowed {
		pass[a] = true
	}
	found := []bench.Finding{}
	offend := func(subject, text, want, have string) {
		found = append(found, bench.Finding{Verdict: Fail, Subject: subject, Text: text, Want: want, Have: have,
			Hint: "mount nothing of the host in a slot; unmount it, or give the slot its own"})
	}
	root := false
	for _, m := range mounts {
		switch {
		case m.Point == "/" && !root:
			root = true
			if m.Fstype != "overlay" || m.Root != "/" {
				offend("/", "the root is not the slot's own overlay", "overlay with root /", m.Fstype+" with root "+m.Root)
			}
		case pass[m.Point]:
		case m.Fstype == "proc" && m.Point == "/proc"+m.Root && slices.Contains(m.Options, "ro"):
		case !carried[m.Fstype]:
			offend(m.Point, "a "+m.Fstype+" mount cannot be carried by a checkpoint", "", m.Source)
		case m.Root != "/":
			offend(m.Point, "is a bind of "+m.Root+" from another mount", "", m.Source)
		}
	}
	if !root {
		found = append(found, bench.Finding{Verdict: VerdictUnknown, Subject: "/", Text: "the mount table shows no root"})
	}
	return found
}
