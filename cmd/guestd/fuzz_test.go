package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
)

// The X server is the slot's: it may say anything. Each exchange ends, and what is
// taken for an answer holds what it must hold.
func FuzzXServer(f *testing.F) {
	setup := make([]byte, 72)
	copy(setup, []byte{1, 0, 11, 0, 0, 0, 16, 0})
	setup[28] = 1 // one screen
	answers := func(n int, size byte) (out []byte) {
		for i := range n {
			a := make([]byte, 32+4*int(size))
			a[0], a[1], a[2], a[4] = 1, 32, byte(i+1), size
			binary.LittleEndian.PutUint16(a[16:], 8)
			out = append(out, a...)
		}
		return out
	}
	for use := range uint8(3) {
		f.Add(use, []byte{})
		f.Add(use, []byte{0, 4, 11, 0, 0, 0, 1, 0, 'n', 'o', 'n', 'e'})
		f.Add(use, setup)
		f.Add(use, append(append([]byte{}, setup...), answers(40, 0)...))
		f.Add(use, append(append([]byte{}, setup...), answers(40, 4)...))
		f.Add(use, append(append([]byte{}, setup...), 35, 0, 1, 0, 255, 255, 255, 255))
	}
	f.Fuzz(func(t *testing.T, use uint8, said []byte) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		conns := make([]*net.UnixConn, 2)
		for i, fd := range fds {
			file := os.NewFile(uintptr(fd), "x")
			c, err := net.FileConn(file)
			if err = errors.Join(err, file.Close()); err != nil {
				t.Fatal(err)
			}
			conns[i] = c.(*net.UnixConn)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			conns[1].Write(said)
			conns[1].CloseWrite()
			io.Copy(io.Discard, conns[1])
			conns[1].Close()
		}()
		w := &wire{socket: conns[0], in: bufio.NewReaderSize(conns[0], 16<<10)}
		w.socket.SetDeadline(time.Now().Add(time.Minute)) // nothing here waits: a slow machine is no finding
		if err := w.hello(); err == nil {
			c := &connection{wire: w, root: w.setup.root, width: 4, height: 3, depth: 24}
			switch use % 3 {
			case 0:
				err = c.view(&proto.Screen{})
			case 1:
				var png []byte
				if png, err = c.capture(); err == nil && !strings.HasPrefix(string(png), "\x89PNG") {
					t.Errorf("a picture of %q", png[:min(len(png), 8)])
				}
			case 2:
				_, _, err = c.find(func(window) bool { return true })
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error(err)
			}
		}
		w.close()
		<-ended
	})
}

// What a request, a configuration or a file of the image says is taken apart to its end.
func FuzzText(f *testing.F) {
	for _, seed := range []string{
		`a "b c" 'd "e'`, `["a","~/b"]`, `"a b"`, `{"Exec":["a"],"Name":"../x","Program":"AA==","Paths":["a"]}`, `{"memory":"1"}`, `"1e400"`, "NaN",
		"[Desktop Entry]\nDesktopNames=GNOME;X;\n", "export A=\"b\" # c\n=x\n", "PRETTY_NAME=\"Debian\"\n", "Package: a\nStatus: install ok installed\nVersion: 1\n\n", "-I -c x", "-Xpycache_prefix=/a\x00-W", "#!/bin/sh -e\n",
	} {
		f.Add([]byte(seed))
	}
	dir := f.TempDir()
	for _, name := range []string{"etc", "var/lib/dpkg"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			f.Fatal(err)
		}
	}
	who := &identity{home: "/home/user"}
	f.Fuzz(func(t *testing.T, data []byte) {
		splitWords(string(data))
		for _, shell := range []bool{false, true} {
			if argv, _, err := who.words(data, shell); err == nil && (len(argv) == 0 || argv[0] == "") {
				t.Errorf("%q is the command %q", data, argv)
			}
		}
		if limit, _, err := openTime(data); err == nil && (limit < 0 || limit > proto.MaxExecuteTimeout) {
			t.Errorf("%q is a time of %s", data, limit)
		}
		parseMachine(data)
		var q proto.CheckRequest
		if json.Unmarshal(data, &q) == nil && validCheck(q) == nil && strings.ContainsAny(q.Name, "/\x00") {
			t.Errorf("%q is the name of a file", q.Name)
		}
		pythonOptions(strings.Split(string(data), "\x00"))
		file := filepath.Join(dir, "etc/os-release")
		for _, name := range []string{file, filepath.Join(dir, "var/lib/dpkg/status")} {
			if err := os.WriteFile(name, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		desktopNames(file)
		variables := map[string]string{}
		readVariables(file, variables)
		for name := range variables {
			if name == "" || strings.ContainsAny(name, "=\x00 \t") {
				t.Errorf("a variable %q", name)
			}
		}
		prettyName(dir)
		packages(dir)
	})
}
