package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/drumsbench/drumsbench/engine"
)

const controllerDevices = "devices"

// Guard lets the tasks of the limits open no devices but those that rules allow,
// the rule that denies all first. On v1 a group on the devices hierarchy says it,
// owned and removed with the limits; on v2 a program on the limits' own group,
// which goes with that. What is in force then is read back: ErrRefused if it is
// something else, or where the kernel has no such thing.
func (l *Limits) Guard(owner *Owner, rules []specs.LinuxDeviceCgroup) error {
	const op = "guard devices"
	if l.Unified() {
		if err := attach(l.dir, rules); err != nil {
			return &engine.Error{Op: op, Err: fmt.Errorf("%w: %w", engine.ErrRefused, err), Hint: "the kernel needs CONFIG_CGROUP_BPF, and we CAP_BPF"}
		}
	} else {
		if err := l.Also(owner, controllerDevices); err != nil {
			return err
		}
		if l.devices == "" {
			return &engine.Error{Op: op, Err: fmt.Errorf("%w: no mounted v1 hierarchy holds the devices controller", engine.ErrRefused),
				Hint: "mount the controller, or boot the kernel with it"}
		}
		for _, r := range rules {
			file, line := "devices.deny", line(r)
			if r.Allow {
				file = "devices.allow"
			}
			if err := write(filepath.Join(l.devices, file), line); err != nil {
				return &engine.Error{Op: op, Err: err}
			}
		}
	}
	have, err := l.Devices()
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	want, err := l.expected(rules)
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	if !slices.Equal(have, want) {
		return &engine.Error{Op: op, Err: fmt.Errorf("%w: the kernel enforces %q instead of %q", engine.ErrRefused, have, want),
			Hint: "the groups above ours allow less"}
	}
	return nil
}

// Devices are what the limits' tasks can open: on v1 the kernel's own list, one
// "c 1:3 rwm" each, sorted; on v2 the programs that judge it, by type and tag.
// ErrUnknown where nothing of the limits' judges it.
func (l *Limits) Devices() ([]string, error) {
	if l.Unified() {
		return l.programs()
	}
	if l.devices == "" {
		return nil, fmt.Errorf("%w: the limits have no group on the devices hierarchy", engine.ErrUnknown)
	}
	dir := l.devices
	if _, err := os.Lstat(filepath.Join(dir, Leaf)); err == nil { // runc's own
		dir = filepath.Join(dir, Leaf)
	}
	text, err := read(dir, "devices.list")
	if err != nil {
		return nil, err
	}
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return lines, nil
}

// expected is what Devices says where these rules are in force.
func (l *Limits) expected(rules []specs.LinuxDeviceCgroup) ([]string, error) {
	if l.Unified() {
		p, err := load(rules)
		if err != nil {
			return nil, err
		}
		defer p.Close()
		said, err := describe(p)
		return []string{said}, err
	}
	var lines []string
	for _, r := range rules {
		if r.Allow {
			lines = append(lines, line(r))
		}
	}
	slices.Sort(lines)
	return lines, nil
}

// line is a rule as the v1 controller writes it.
func line(r specs.LinuxDeviceCgroup) string {
	if r.Type == "a" {
		return "a"
	}
	number := func(n *int64) string {
		if n == nil || *n < 0 {
			return "*"
		}
		return fmt.Sprint(*n)
	}
	return fmt.Sprintf("%s %s:%s %s", r.Type, number(r.Major), number(r.Minor), r.Access)
}

func load(rules []specs.LinuxDeviceCgroup) (*ebpf.Program, error) {
	instructions, license, err := cgroup2.DeviceFilter(rules)
	if err != nil {
		return nil, err
	}
	return ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.CGroupDevice, Instructions: instructions, License: license})
}

func attach(group *os.File, rules []specs.LinuxDeviceCgroup) error {
	if group == nil {
		return errors.New("the limits are not ours to guard")
	}
	p, err := load(rules)
	if err != nil {
		return err
	}
	defer p.Close()      // the group holds it
	const allowMulti = 2 // BPF_F_ALLOW_MULTI: programs of groups above and below judge as well
	return link.RawAttachProgram(link.RawAttachProgramOptions{Target: int(group.Fd()), Program: p, Attach: ebpf.AttachCGroupDevice, Flags: allowMulti})
}

func (l *Limits) programs() ([]string, error) {
	group, err := os.Open(l.places[""].dir)
	if err != nil {
		return nil, err
	}
	defer group.Close()
	return programsOn(group)
}

func programsOn(group *os.File) ([]string, error) {
	found, err := link.QueryPrograms(link.QueryOptions{Target: int(group.Fd()), Attach: ebpf.AttachCGroupDevice})
	if err != nil {
		return nil, err
	}
	var said []string
	for _, f := range found.Programs {
		p, err := ebpf.NewProgramFromID(f.ID)
		if err != nil {
			return nil, err
		}
		text, err := describe(p)
		p.Close()
		if err != nil {
			return nil, err
		}
		said = append(said, text)
	}
	if len(said) == 0 {
		return nil, fmt.Errorf("%w: no program on %s judges devices", engine.ErrUnknown, group.Name())
	}
	slices.Sort(said)
	return said, nil
}

func describe(p *ebpf.Program) (string, error) {
	info, err := p.Info()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s program %s", info.Type, info.Tag), nil
}
