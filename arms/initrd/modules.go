package initrd

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
)

// module is a kernel module as a file.
type module struct{ name, path string }

// canonicalName is how the kernel names a module whose file may have minus signs in its name.
func canonicalName(name string) string { return strings.ReplaceAll(name, "-", "_") }

// loadOrder returns modules and all that they need, what is needed first. What a
// module needs is what it says itself (modinfo): a package has no modules.dep,
// which is made when it is installed.
func loadOrder(dir string, modules []string) ([]module, error) {
	files, err := moduleFiles(dir)
	if err != nil {
		return nil, err
	}
	builtin, err := builtins(dir)
	if err != nil {
		return nil, err
	}
	var order []module
	state := map[string]int{} // 1 while what it needs is looked at, 2 once it is in the order
	var add func(name, by string) error
	add = func(name, by string) error {
		name = canonicalName(name)
		path, ok := files[name]
		switch {
		case state[name] == 2 || builtin[name]:
			return nil
		case state[name] == 1:
			return fmt.Errorf("module %s needs itself", name)
		case !ok:
			return fmt.Errorf("module %s, which %s needs, is neither in %s nor built in: %w", name, by, filepath.Base(dir), engine.ErrUsage)
		}
		state[name] = 1
		needs, err := needsOf(path)
		if err != nil {
			return err
		}
		for _, n := range needs {
			if err := add(n, name); err != nil {
				return err
			}
		}
		state[name] = 2
		order = append(order, module{name, path})
		return nil
	}
	for _, m := range modules {
		if err := add(m, "the recipe"); err != nil {
			return nil, err
		}
	}
	return order, nil
}

func moduleFiles(dir string) (map[string]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base, isModule := strings.CutSuffix(d.Name(), ".ko")
		if !isModule || !d.Type().IsRegular() {
			return nil
		}
		name := canonicalName(base)
		if files[name] != "" {
			return fmt.Errorf("%s and %s are one module", files[name], path)
		}
		files[name] = path
		return nil
	})
	return files, err
}

func builtins(dir string) (map[string]bool, error) {
	text, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		names[canonicalName(strings.TrimSuffix(filepath.Base(strings.TrimSpace(line)), ".ko"))] = true
	}
	return names, nil
}

// needsOf reads the section .modinfo of a module: entries KEY=VALUE that end with a zero byte.
func needsOf(path string) ([]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	defer f.Close()
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), errors.New("it has no section .modinfo"))
	}
	text, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	var needs []string
	for entry := range strings.SplitSeq(string(text), "\x00") {
		if list, ok := strings.CutPrefix(entry, "depends="); ok && list != "" {
			needs = append(needs, strings.Split(list, ",")...)
		}
		if list, ok := strings.CutPrefix(entry, "softdep=pre: "); ok {
			before, _, _ := strings.Cut(list, " post:")
			needs = append(needs, strings.Fields(before)...)
		}
	}
	slices.Sort(needs)
	return slices.Compact(needs), nil
}
