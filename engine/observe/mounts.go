// Package observe reads the kernel's text on mounts, networks, locks, processes
// and sockets into the schemas' types, for the arms (the host's view) and for
// guestd (the guest's view) alike: two views differ only where the slot does.
//
// What always holds: a parser changes nothing and keeps nothing open, and a text
// that it does not understand is an error, never an empty answer.
package observe

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// ParseMounts reads a mount table in the form of /proc/PID/mountinfo
// (proc_pid_mountinfo(5)) and returns it raw: every option with its value, octal
// escapes decoded. The propagation fields ("shared:7", "master:3",
// "unbindable") follow the mount's own options, as they do in the kernel's text.
//
// The mounts come in an order that is the same for every table of the same
// tree, whatever the ids are: parents before children, children by mount point,
// and a mount that covers its own parent after its siblings. So the order tells
// which of two mounts on one point lies on top, and on which of them a third
// one is mounted.
//
// A table that is empty, or whose lines contradict each other, is ErrFormat.
func ParseMounts(r io.Reader) ([]bench.Mount, error) {
	infos, err := mountinfo.GetMountsFromReader(r, nil)
	if err != nil {
		return nil, fmt.Errorf("read mount table: %w: %w", ErrFormat, err)
	}
	if len(infos) == 0 {
		return nil, fmt.Errorf("read mount table: %w: it is empty", ErrFormat)
	}
	tree, err := inTreeOrder(infos)
	if err != nil {
		return nil, fmt.Errorf("read mount table: %w: %w", ErrFormat, err)
	}
	mounts := make([]bench.Mount, len(tree))
	for i, in := range tree {
		options := splitOptions(in.Options)
		if in.Optional != "" {
			options = append(options, strings.Fields(in.Optional)...)
		}
		mounts[i] = bench.Mount{
			Point:   in.Mountpoint,
			Root:    in.Root,
			Fstype:  in.FSType,
			Source:  in.Source,
			Options: options,
			Super:   splitOptions(in.VFSOptions),
		}
	}
	return mounts, nil
}

// inTreeOrder sorts infos as ParseMounts promises. A mount whose parent is not in
// the table (the parent of the process's root is not) is a top.
func inTreeOrder(infos []*mountinfo.Info) ([]*mountinfo.Info, error) {
	byID := make(map[int]*mountinfo.Info, len(infos))
	for _, in := range infos {
		if in.ID <= 0 {
			return nil, fmt.Errorf("mount %s has no id", in.Mountpoint)
		}
		if byID[in.ID] != nil {
			return nil, fmt.Errorf("id %d stands for two mounts, %s and %s", in.ID, byID[in.ID].Mountpoint, in.Mountpoint)
		}
		byID[in.ID] = in
	}
	children := make(map[int][]*mountinfo.Info)
	var tops []*mountinfo.Info
	for _, in := range infos {
		if byID[in.Parent] == nil || in.Parent == in.ID {
			tops = append(tops, in)
		} else {
			children[in.Parent] = append(children[in.Parent], in)
		}
	}
	out := make([]*mountinfo.Info, 0, len(infos))
	var walk func(*mountinfo.Info)
	walk = func(in *mountinfo.Info) {
		out = append(out, in)
		covers := func(c *mountinfo.Info) int {
			if c.Mountpoint == in.Mountpoint {
				return 1
			}
			return 0
		}
		below := children[in.ID]
		slices.SortStableFunc(below, func(a, b *mountinfo.Info) int {
			return cmp.Or(covers(a)-covers(b), strings.Compare(a.Mountpoint, b.Mountpoint))
		})
		for _, c := range below {
			walk(c)
		}
	}
	slices.SortStableFunc(tops, func(a, b *mountinfo.Info) int { return strings.Compare(a.Mountpoint, b.Mountpoint) })
	for _, in := range tops {
		walk(in)
	}
	if len(out) != len(infos) {
		return nil, fmt.Errorf("%d of %d mounts hang below themselves", len(infos)-len(out), len(infos))
	}
	return out, nil
}

// splitOptions splits at commas, which the kernel writes as \054 inside a value,
// and then decodes the escapes of each option.
func splitOptions(text string) []string {
	if text == "" {
		return []string{}
	}
	options := strings.Split(text, ",")
	for i, o := range options {
		options[i] = decodeOctal(o)
	}
	return options
}

// decodeOctal decodes \NNN, three octal digits for one byte, as seq_escape in
// the kernel writes it.
func decodeOctal(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && '0' <= s[i+1] && s[i+1] <= '3' && isOctal(s[i+2]) && isOctal(s[i+3]) {
			b.WriteByte((s[i+1]-'0')<<6 | (s[i+2]-'0')<<3 | (s[i+3] - '0'))
			i += 3
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func isOctal(c byte) bool { return '0' <= c && c <= '7' }

// Drop names something of a mount table that says nothing about whether two
// tables are equal.
type Drop struct {
	// Field of the line, in the words of proc_pid_mountinfo(5).
	Field string
	// Fstype restricts the drop to one kind of file system; empty is all.
	Fstype string
	// Option is the name before "=" or ":"; empty where the whole field goes.
	Option string
	// ValueOnly keeps the option's name.
	ValueOnly bool
	// Reason says why a difference there is none.
	Reason string
}

// The fields that a Drop can name.
const (
	fieldID     = "mount id and parent id"
	fieldDev    = "major:minor"
	fieldPropag = "optional fields"
	fieldSuper  = "super options"
)

// Dropped is everything that Normalise leaves out when two mount tables are
// compared, and the only place where such a choice is made. What is not in it is
// compared.
//
//	the first two never get as far as Normalise: bench.Mount has no place for
//	them, they are named here so that the list is complete
var Dropped = []Drop{
	{Field: fieldID, Reason: "numbers that the kernel gives out in turn; the order of the table keeps what they say about the tree"},
	{Field: fieldDev, Reason: "st_dev of a file system without a device is given out in turn"},
	{Field: fieldPropag, Option: "shared", ValueOnly: true, Reason: "peer group numbers are given out in turn; that the mount is shared is compared"},
	{Field: fieldPropag, Option: "master", ValueOnly: true, Reason: "as for shared"},
	{Field: fieldPropag, Option: "propagate_from", ValueOnly: true, Reason: "as for shared"},
	{Field: fieldSuper, Fstype: "overlay", Option: "lowerdir", Reason: "the layers of a restored slot are the sealed ones over the image; what they hold is compared by the state manifest"},
	{Field: fieldSuper, Fstype: "overlay", Option: "lowerdir+", Reason: "lowerdir as the newer mount interface writes it"},
	{Field: fieldSuper, Fstype: "overlay", Option: "upperdir", Reason: "each slot has its own on the host"},
	{Field: fieldSuper, Fstype: "overlay", Option: "workdir", Reason: "each slot has its own on the host"},
	{Field: fieldSuper, Fstype: "overlay", Option: "index", Reason: "on where a slot is provisioned, so that a dump finds its inotify watches by file handle; a restore needs none"},
	{Field: fieldSuper, Fstype: "overlay", Option: "nfs_export", Reason: "as for index"},
}

// Normalise returns what is compared of mounts: a copy without what Dropped
// names, options sorted. The order of the mounts stays, it says how they are
// stacked. Idempotent.
func Normalise(mounts []bench.Mount) []bench.Mount {
	out := slices.Clone(mounts)
	for i, m := range out {
		out[i].Options = compared(fieldPropag, m.Fstype, m.Options)
		out[i].Super = compared(fieldSuper, m.Fstype, m.Super)
	}
	return out
}

// compared returns the options of a field that are compared, sorted; never nil,
// so that equal tables are equal as JSON too.
func compared(field, fstype string, options []string) []string {
	kept := make([]string, 0, len(options))
	for _, o := range options {
		name := optionName(o)
		i := slices.IndexFunc(Dropped, func(d Drop) bool {
			return d.Field == field && d.Option == name && (d.Fstype == "" || d.Fstype == fstype)
		})
		switch {
		case i < 0:
			kept = append(kept, o)
		case Dropped[i].ValueOnly:
			kept = append(kept, name)
		}
	}
	slices.Sort(kept)
	return kept
}

func optionName(o string) string {
	if i := strings.IndexAny(o, "=:"); i >= 0 {
		return o[:i]
	}
	return o
}
