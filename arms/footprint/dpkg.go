package footprint

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// installed is a package as dpkg's file status (deb822) has it.
type installed struct {
	version string
	// size in bytes; dpkg has it in KiB (deb-control(5)).
	size int64
	// needs are groups of alternatives, of Depends and Pre-Depends.
	needs [][]string
}

// database of installed packages; provided are virtual names.
type database struct {
	installed map[string]installed
	provided  map[string][]string
}

func readStatus(path string) (database, error) {
	db := database{map[string]installed{}, map[string][]string{}}
	f, err := os.Open(path)
	if err != nil {
		return db, err
	}
	defer f.Close()
	fields := map[string]string{}
	flush := func() {
		name := fields["Package"]
		if strings.HasSuffix(fields["Status"], " installed") && name != "" {
			size, _ := strconv.ParseInt(fields["Installed-Size"], 10, 64)
			p := installed{version: fields["Version"], size: size * 1024}
			for _, list := range []string{fields["Pre-Depends"], fields["Depends"]} {
				p.needs = append(p.needs, relations(list)...)
			}
			for _, group := range relations(fields["Provides"]) {
				db.provided[group[0]] = append(db.provided[group[0]], name)
			}
			if old, twice := db.installed[name]; twice { // of another architecture: both are there
				p.size, p.needs = p.size+old.size, append(p.needs, old.needs...)
			}
			db.installed[name] = p
		}
		fields = map[string]string{}
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if line == "" {
			flush()
			continue
		}
		if key, value, ok := strings.Cut(line, ":"); ok && line[0] != ' ' && line[0] != '\t' {
			fields[key] = strings.TrimSpace(value)
		}
	}
	flush()
	if err := lines.Err(); err != nil {
		return db, fmt.Errorf("%s: %w", path, err)
	}
	return db, nil
}

// relations of a field: names without versions and architectures, by groups of alternatives.
func relations(field string) (groups [][]string) {
	for _, group := range strings.Split(field, ",") {
		var names []string
		for _, one := range strings.Split(group, "|") {
			name, _, _ := strings.Cut(strings.TrimSpace(one), " ")
			name, _, _ = strings.Cut(name, "(")
			name, _, _ = strings.Cut(name, ":")
			if name != "" {
				names = append(names, name)
			}
		}
		if len(names) > 0 {
			groups = append(groups, names)
		}
	}
	return groups
}

// closure is what is installed of the packages and of all that they depend on: of
// alternatives, each that is there.
func (db database) closure(roots []string) (list []string) {
	seen := map[string]bool{}
	for queue := roots; len(queue) > 0; queue = queue[1:] {
		name := queue[0]
		p, there := db.installed[name]
		if seen[name] {
			continue
		}
		seen[name] = true
		if !there { // a virtual one, or an alternative that nobody has installed
			queue = append(queue, db.provided[name]...)
			continue
		}
		list = append(list, name)
		for _, group := range p.needs {
			queue = append(queue, group...)
		}
	}
	return list
}

// owners says which package has each path, by dpkg's lists of files. On a merged
// /usr a list may have it without that.
func owners(dpkg string, paths map[string]bool) (map[string]string, error) {
	out := map[string]string{}
	if len(paths) == 0 {
		return out, nil
	}
	lists, err := filepath.Glob(filepath.Join(dpkg, "info", "*.list"))
	if err != nil || len(lists) == 0 {
		return out, fmt.Errorf("no lists of files in %s: %v", dpkg, err)
	}
	want := map[string]string{}
	for path := range paths {
		want[path] = path
		want[strings.TrimPrefix(path, "/usr")] = path
	}
	for _, list := range lists {
		f, err := os.Open(list)
		if err != nil {
			return out, err
		}
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if path, is := want[lines.Text()]; is {
				name, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(list), ".list"), ":")
				out[path] = name
			}
		}
		f.Close()
		if err := lines.Err(); err != nil {
			return out, fmt.Errorf("%s: %w", list, err)
		}
	}
	return out, nil
}
