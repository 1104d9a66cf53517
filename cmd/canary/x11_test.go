package main

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jezek/xgb"
	"github.com/jezek/xgb/xproto"
	"golang.org/x/sys/unix"
)

// startX starts an X server of the test's own; it ends with the test.
func startX(t *testing.T) (number string) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	x := exec.Command("Xvfb", "-displayfd", "3", "-screen", "0", "64x64x24", "-nolisten", "tcp", "-ac", "-noreset")
	x.ExtraFiles = []*os.File{write}
	var said bytes.Buffer
	x.Stderr = &said
	err = x.Start()
	write.Close()
	if err != nil {
		t.Fatalf("%v: scripts/setup installs it", err)
	}
	t.Cleanup(func() {
		x.Process.Signal(unix.SIGTERM)
		err := x.Wait()
		if t.Failed() {
			t.Logf("the X server: %v\n%s", err, &said)
		}
	})
	line, err := bufio.NewReader(read).ReadString('\n') // the server writes once it answers
	if err != nil {
		t.Fatalf("the X server gives no number: %v", err)
	}
	number = strings.TrimSpace(line)
	old := display
	display = filepath.Join("/tmp/.X11-unix", "X"+number)
	t.Cleanup(func() { display = old })
	return number
}

// fresh forgets what the clipboard was, as another process would not know it.
func fresh() {
	pasted = sync.OnceValues(func() (string, error) {
		c, err := dialX()
		if err != nil {
			return "", err
		}
		defer c.Close()
		return c.paste()
	})
}

// A library of its own asks for what this program holds in the clipboard, and this
// program for what the library holds; one that holds nothing is seen to.
func TestClipboard(t *testing.T) {
	number := startX(t)
	clip.Lock()
	clip.tokens = nil
	clip.Unlock()
	one, two := token{strings.Repeat("a", 32), 2000}, token{strings.Repeat("b", 32), 2001}
	seen := func(t_ token, want bool) {
		t.Helper()
		fresh()
		if have, err := seekClipboard(t_); err != nil || (have == t_.text) != want {
			t.Errorf("%.4s: seen as %q, %v, want %v", t_.text, have, err, want)
		}
	}
	seen(one, false)
	for _, held := range []token{one, two} {
		if err := holdClipboard(held); err != nil {
			t.Fatal(err)
		}
	}
	seen(one, true)
	seen(two, true)
	seen(token{strings.Repeat("c", 32), 2002}, false)

	x, err := xgb.NewConnDisplay(":" + number)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	atom := func(name string) xproto.Atom {
		r, err := xproto.InternAtom(x, false, uint16(len(name)), name).Reply()
		if err != nil {
			t.Fatal(err)
		}
		return r.Atom
	}
	clipboard, text, property := atom("CLIPBOARD"), atom("UTF8_STRING"), atom("THERE")
	window, err := xproto.NewWindowId(x)
	if err != nil {
		t.Fatal(err)
	}
	root := xproto.Setup(x).DefaultScreen(x).Root
	if err := xproto.CreateWindowChecked(x, 0, window, root, 0, 0, 1, 1, 0, xproto.WindowClassInputOnly, 0, 0, nil).Check(); err != nil {
		t.Fatal(err)
	}
	for target, want := range map[xproto.Atom]string{text: one.text + " " + two.text, atom("TARGETS"): ""} {
		xproto.ConvertSelection(x, window, clipboard, target, property, 0)
		for {
			e, err := x.WaitForEvent()
			if err != nil || e == nil {
				t.Fatal(e, err)
			}
			n, is := e.(xproto.SelectionNotifyEvent)
			if !is {
				continue
			}
			if (n.Property != 0) != (want != "") {
				t.Errorf("target %d is answered with property %d", target, n.Property)
			}
			break
		}
		if want != "" {
			r, err := xproto.GetProperty(x, true, window, property, 0, 0, 64).Reply()
			if err != nil || string(r.Value) != want {
				t.Errorf("the library reads %q, %v", r.Value, err)
			}
		}
	}

	// Somebody else takes the clipboard and keeps what was in it.
	xproto.SetSelectionOwner(x, window, clipboard, 0)
	kept := two.text
	var ended sync.WaitGroup
	ended.Go(func() {
		for {
			e, err := x.WaitForEvent()
			if e == nil && err == nil {
				return
			}
			r, is := e.(xproto.SelectionRequestEvent)
			if !is {
				continue
			}
			xproto.ChangeProperty(x, xproto.PropModeReplace, r.Requestor, r.Property, r.Target, 8, uint32(len(kept)), []byte(kept))
			xproto.SendEvent(x, false, r.Requestor, 0, string(xproto.SelectionNotifyEvent{Requestor: r.Requestor, Selection: r.Selection, Target: r.Target, Property: r.Property}.Bytes()))
		}
	})
	if _, err := xproto.GetSelectionOwner(x, clipboard).Reply(); err != nil { // it is the owner from here on
		t.Fatal(err)
	}
	seen(one, false)
	seen(two, true)
	if err := cleanClipboard(one); err != nil {
		t.Fatal(err)
	}
	seen(two, true) // what is not the token's is not touched
	if err := cleanClipboard(two); err != nil {
		t.Fatal(err)
	}
	seen(two, false)
	x.Close()
	ended.Wait()
}

// Where there is no display there is no clipboard, which is no error; where the
// server lies or says nothing, it is one.
func TestNoClipboard(t *testing.T) {
	old := display
	t.Cleanup(func() { display = old })
	display = filepath.Join(t.TempDir(), "X0")
	pasted = sync.OnceValues(func() (string, error) { return "", nil })
	if err := cleanClipboard(token{strings.Repeat("a", 32), 2000}); err != nil {
		t.Error(err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: display}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 4); err != nil {
		t.Fatal(err)
	}
	for _, answer := range []string{"", "\x00\x04\x0b\x00\x00\x00\x01\x00nono", "\x01\x00\x0b\x00\x00\x00\xff\xff", "\x01\x00\x0b\x00\x00\x00\x00\x00"} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			c, _, err := unix.Accept(fd)
			if err != nil {
				return
			}
			unix.Write(c, []byte(answer))
			time.Sleep(10 * time.Millisecond)
			unix.Close(c)
		}()
		if c, err := dialX(); err == nil {
			c.Close()
			t.Errorf("a server that says %q is believed", answer)
		}
		<-done
	}
}
