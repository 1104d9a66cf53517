package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
)

// systemLimit bounds each file that is read; a package database of 5,000 packages has some 6 MiB.
const systemLimit = 64 << 20

// readSystem reads what the software below root is. What cannot be read is
// unknown by itself: the rest is worth knowing all the same.
func readSystem(root string) *proto.System {
	return &proto.System{
		OS: reading("/etc/os-release", func() (string, error) { return prettyName(root) }),
		Kernel: reading("uname(2)", func() (string, error) {
			return uname(func(u *unix.Utsname) []byte { return u.Release[:] })
		}),
		Machine: reading("uname(2)", func() (string, error) {
			return uname(func(u *unix.Utsname) []byte { return u.Machine[:] })
		}),
		Packages: reading("/var/lib/dpkg", func() (string, error) { return packages(root) }),
	}
}

func reading(source string, read func() (string, error)) proto.Reading {
	v, err := read()
	switch {
	case err != nil:
		return proto.Reading{Unknown: cut(err.Error(), proto.MaxReading)}
	case v == "":
		return proto.Reading{Unknown: source + " says nothing"}
	case len(v) > proto.MaxReading:
		return proto.Reading{Unknown: fmt.Sprintf("%s says %d bytes, the limit is %d", source, len(v), proto.MaxReading)}
	}
	return proto.Reading{Value: printable(v), Source: source}
}

func cut(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	return printable(s)
}

func uname(field func(*unix.Utsname) []byte) (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", err
	}
	return unix.ByteSliceToString(field(&u)), nil
}

// prettyName as os-release(5) has it: /usr/lib's where there is none in /etc.
func prettyName(root string) (string, error) {
	f, err := os.Open(filepath.Join(root, "etc/os-release"))
	if errors.Is(err, fs.ErrNotExist) {
		f, err = os.Open(filepath.Join(root, "usr/lib/os-release"))
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	name := ""
	err = lines(f, func(line string) error {
		if v, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
			name = strings.Trim(strings.TrimSpace(v), `"'`)
		}
		return nil
	})
	if err == nil && name == "" {
		err = errors.New("os-release has no PRETTY_NAME")
	}
	return name, err
}

// packages reads dpkg's database: the file status, or the folder status.d of
// images without dpkg; see proto.System.
func packages(root string) (string, error) {
	base := filepath.Join(root, "var/lib/dpkg")
	files := []string{filepath.Join(base, "status")}
	if _, err := os.Stat(files[0]); errors.Is(err, fs.ErrNotExist) {
		folder, ferr := os.ReadDir(filepath.Join(base, "status.d"))
		if ferr != nil {
			return "", fmt.Errorf("no package database: %w", err)
		}
		files = files[:0]
		for _, e := range folder {
			if !strings.HasSuffix(e.Name(), ".md5sums") {
				files = append(files, filepath.Join(base, "status.d", e.Name()))
			}
		}
	}
	var list []string
	for _, name := range files {
		found, err := installed(name)
		if err != nil {
			return "", err
		}
		list = append(list, found...)
	}
	if len(list) == 0 {
		return "", fmt.Errorf("%s lists no installed package", base)
	}
	slices.Sort(list)
	h := sha256.New()
	for _, p := range list {
		io.WriteString(h, p+"\n")
	}
	return strconv.Itoa(len(list)) + " packages, sha256 " + hex.EncodeToString(h.Sum(nil)), nil
}

// installed are the installed packages of one file of paragraphs (deb822(5)).
// One without a Status is of status.d, where all are installed.
func installed(name string) (list []string, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p := map[string]string{}
	end := func() error {
		defer clear(p)
		status, said := p["Status"]
		if len(p) == 0 || said && !strings.HasSuffix(status, " installed") {
			return nil
		}
		if p["Package"] == "" || p["Version"] == "" {
			return fmt.Errorf("%s: a paragraph without name or version", name)
		}
		list = append(list, p["Package"]+" "+p["Architecture"]+" "+p["Version"])
		return nil
	}
	err = lines(f, func(line string) error {
		if strings.TrimSpace(line) == "" {
			return end()
		}
		for _, field := range []string{"Package", "Status", "Architecture", "Version"} {
			if v, ok := strings.CutPrefix(line, field+":"); ok {
				p[field] = strings.TrimSpace(v)
			}
		}
		return nil
	})
	if err == nil {
		err = end()
	}
	return list, err
}

// lines calls f with each line of a file, which must not be larger than systemLimit.
func lines(file io.Reader, f func(line string) error) error {
	limited := &io.LimitedReader{R: file, N: systemLimit + 1}
	s := bufio.NewScanner(limited)
	s.Buffer(make([]byte, 0, 16<<10), 1<<20)
	for s.Scan() {
		if err := f(s.Text()); err != nil {
			return err
		}
	}
	if limited.N == 0 {
		return fmt.Errorf("the file is larger than %d bytes", systemLimit)
	}
	return s.Err()
}
