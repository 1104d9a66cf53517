package criu

import (
	"slices"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/cgroup"
)

// ControlGroup is one control group of which an image keeps settings, which a
// restore may write to the host: its controllers and its path below the hierarchy.
type ControlGroup struct {
	Controllers []string
	Path        string
}

// ControlGroups lists them, those below others after them. A dump that was told to
// ignore cgroups has none.
func (im Images) ControlGroups() ([]ControlGroup, error) {
	found, err := optional(entries[cgroup.CgroupEntry](im, "cgroup", "cgroup.img"))
	if err != nil {
		return nil, err
	}
	var groups []ControlGroup
	var walk func(names []string, above string, dirs []*cgroup.CgroupDirEntry)
	walk = func(names []string, above string, dirs []*cgroup.CgroupDirEntry) {
		for _, d := range dirs {
			path := above + "/" + d.GetDirName()
			groups = append(groups, ControlGroup{slices.Clone(names), path})
			walk(names, path, d.GetChildren())
		}
	}
	for _, e := range found {
		for _, c := range e.GetControllers() {
			walk(c.GetCnames(), "", c.GetDirs())
		}
	}
	return groups, nil
}
