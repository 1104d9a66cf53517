package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jezek/xgb"
	"github.com/jezek/xgb/xproto"
	"golang.org/x/tools/txtar"

	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	screenrule "github.com/drumsbench/drumsbench/engine/screen"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

var update = flag.Bool("update", false, "write the golden files of this package anew")

const deskWidth, deskHeight = 1280, 800

var xServer = bench.Service{Name: "x", Exec: []string{"Xvfb", proto.Display, "-screen", "0", fmt.Sprintf("%dx%dx24", deskWidth, deskHeight), "-nolisten", "tcp",
	// A server resets when its last client leaves, as guestd does that looked for the socket, and drops those that come meanwhile.
	"-noreset"},
	Ready: "/tmp/.X11-unix/X0"}

// deskServices are an X server, a window manager and a terminal that shows something.
func deskServices(t testing.TB) []bench.Service {
	t.Helper()
	for _, tool := range []string{"Xvfb", "openbox", "xterm"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%v; run scripts/setup", err)
		}
	}
	return []bench.Service{xServer,
		// What is mapped while openbox starts is never managed.
		{Name: "wm", Exec: []string{"openbox", "--startup", "touch /run/wm"}, Ready: "/run/wm"},
		{Name: "terminal", Exec: []string{"xterm", "-T", "A terminal", "-fn", "fixed", "-geometry", "100x30+40+60", "-e", "sh", "-c", "seq 20; exec sleep 1000"}},
	}
}

// desk is a slot with a screen and, once the services have drawn, a window on it.
func desk(t testing.TB, services ...bench.Service) *testSlot {
	t.Helper()
	config := standard(services...)
	config.Home = "/tmp/home"
	config.Display = &bench.Display{Width: deskWidth, Height: deskHeight, Depth: 24}
	s := launch(t, config, tmpVariable+"=1")
	s.wait(guest.PhaseRunning)
	return s
}

func (s *testSlot) screen() *proto.Screen {
	s.t.Helper()
	p, err := s.client.Probe(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return p.Screen
}

// settle waits for the terminal's window, and until it has drawn.
func (s *testSlot) settle() {
	s.t.Helper()
	defer func() {
		if s.t.Failed() {
			s.t.Logf("%+v\n%s", s.screen(), s.sh("tail /run/guestd/*.log; xwininfo -root -tree"))
		}
	}()
	eventually(s.t, "a managed window", func() bool {
		p, err := s.client.Probe(s.t.Context())
		if err != nil || p.Phase == guest.PhaseFailed {
			log, _ := s.client.ReadFile(s.t.Context(), guest.LogDir+"/wm.log", 4096)
			s.t.Fatalf("%s %+v %v: %s", p.Reason, p.Screen, err, log)
		}
		v := p.Screen
		return v.Unknown == "" && v.Manager != "" && len(v.Windows) > 0
	})
	var last []byte
	eventually(s.t, "two equal pictures", func() bool {
		now, err := s.client.Screenshot(s.t.Context())
		if err != nil {
			s.t.Fatal(err)
		}
		same := bytes.Equal(last, now)
		last = now
		time.Sleep(100 * time.Millisecond)
		return same
	})
}

var volatileNames = regexp.MustCompile(`(/tmp/(?:python_exec_|tmp))[A-Z2-7]{26}`)

// The calls of a client of the public server, and what is answered to each, in
// turn. The requests are what desktop_env's controllers send, header for header.
func TestPublicCalls(t *testing.T) {
	for name, start := range map[string]func(t *testing.T) *testSlot{
		"desk": func(t *testing.T) *testSlot {
			s := desk(t, deskServices(t)...)
			s.settle()
			const opener = "#!/bin/sh\nexec xterm -T \"$(basename \"$1\") - Editor\" -e sleep 1000\n"
			// The host has none of the image's programs: what they are asked, and what is made of their answers.
			const settings = `#!/bin/sh
case "$1 $2 $3 $4" in
"get org.gnome.desktop.background picture-uri ") cat /tmp/home/.uri 2>/dev/null || echo "'file:///tmp/home/sky.svg'" ;;
"set org.gnome.desktop.background picture-uri file:///etc/passwd") ;;
"set org.gnome.desktop.background picture-uri "*) echo "'$4'" >/tmp/home/.uri ;;
*) exit 1 ;;
esac
`
			const recorder = `#!/bin/sh
for to; do :; done
case "$*" in *"-f x11grab "*"-s 1280x800 -i :0.0 "*) ;; *) exit 1 ;; esac
trap 'echo "and its end" >>"$to"; exit 255' INT
echo "a recording" >"$to"
while :; do sleep 0.05; done
`
			for path, program := range map[string]string{"xdg-open": opener, "gsettings": settings, "ffmpeg": recorder,
				"python3": "#!/bin/sh\n[ \"$1 $3\" = '-c tree' ] || exec /usr/bin/python3 \"$@\"\necho '<desktop-frame name=\"main\"/>'\n"} {
				if err := s.client.WriteFile(t.Context(), "/usr/local/sbin/"+path, []byte(program), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for _, name := range []string{"sky.svg", "blue.jpg"} {
				if err := s.client.WriteFile(t.Context(), "/tmp/home/"+name, []byte(name+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			return s
		},
		"no-display": func(t *testing.T) *testSlot { return start(t, guest.PhaseRunning) },
		"no-server":  func(t *testing.T) *testSlot { return desk(t) },
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			file := filepath.Join("testdata", "public", name+".txtar")
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			out := &txtar.Archive{Comment: archive.Comment}
			for _, f := range archive.Files {
				call, kind, _ := strings.Cut(f.Name, ".")
				if kind != "request" {
					continue
				}
				have := volatileNames.ReplaceAll(s.send(f.Data), []byte("${1}NAME"))
				want := archiveFile(archive, call+".response")
				if diff := cmp.Diff(string(want), string(have)); diff != "" && !*update {
					t.Errorf("%s:\n%s", call, diff)
				}
				out.Files = append(out.Files, f, txtar.File{Name: call + ".response", Data: have})
			}
			if *update {
				if err := os.WriteFile(file, txtar.Format(out), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func archiveFile(a *txtar.Archive, name string) []byte {
	for _, f := range a.Files {
		if f.Name == name {
			return f.Data
		}
	}
	return nil
}

// send sends a request as it is written down, but for its line ends and the
// length of its body, and returns status, type and body of the answer.
func (s *testSlot) send(written []byte) []byte {
	s.t.Helper()
	head, body, _ := bytes.Cut(written, []byte("\n\n"))
	body = bytes.TrimSuffix(body, []byte("\n"))
	if bytes.Contains(head, []byte("multipart/form-data")) {
		body = append(bytes.ReplaceAll(body, []byte("\n"), []byte("\r\n")), "\r\n"...)
	}
	lines := strings.Split(strings.TrimSpace(string(head)), "\n")
	if method, _, _ := strings.Cut(lines[0], " "); method == http.MethodPost {
		lines = append(lines, fmt.Sprintf("Content-Length: %d", len(body)))
	}
	conn, err := s.dial(s.t.Context(), testPort)
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(60 * time.Second))
	if _, err := conn.Write(append([]byte(strings.Join(lines, "\r\n")+"\r\n\r\n"), body...)); err != nil {
		s.t.Fatal(err)
	}
	raw, err := io.ReadAll(conn) // guestd closes
	if err != nil {
		s.t.Fatal(err)
	}
	a, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), nil)
	if err != nil {
		s.t.Fatalf("%q: %v", raw, err)
	}
	text, err := io.ReadAll(a.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	if kind := a.Header.Get("Content-Type"); kind == "image/png" {
		c, err := png.DecodeConfig(bytes.NewReader(text))
		if err != nil {
			s.t.Fatal(err)
		}
		text = fmt.Appendf(nil, "PNG of %dx%d", c.Width, c.Height)
	}
	return fmt.Appendf(nil, "%d %s\n%s\n", a.StatusCode, a.Header.Get("Content-Type"), text)
}

func TestScreenOfTheProbe(t *testing.T) {
	s := desk(t, deskServices(t)...)
	s.settle()
	v := s.screen()
	p, err := s.client.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	whole := proto.Rect{Width: deskWidth, Height: deskHeight}
	want := &proto.Screen{Width: deskWidth, Height: deskHeight, Depth: 24, Manager: "Openbox", Work: whole, Windows: []proto.Window{
		{Instance: "xterm", Class: "XTerm", Title: "A terminal", Pid: p.Services[2].Pid, Rect: v.Windows[0].Rect}}}
	if diff := cmp.Diff(want, v); diff != "" {
		t.Error(diff)
	}
	if r := v.Windows[0].Rect; r.Width != 604 || r.Height != 394 || r.X < 40 || r.X > 60 || r.Y < 60 || r.Y > 100 {
		t.Errorf("window at %+v", r)
	}
	// A window without a manager, and one that is not mapped.
	s.sh(`xterm -T 'Käse' -iconic -e sleep 1000 >/dev/null 2>&1 & true`)
	eventually(t, "a second window in the list of clients", func() bool {
		return strings.Count(s.sh("xprop -root _NET_CLIENT_LIST"), "0x") == 2
	})
	if n := len(s.screen().Windows); n != 1 {
		t.Errorf("%d windows, one of them is hidden", n)
	}
	s.sh(`xwininfo -root -tree | grep Käse`)
	if a := s.send([]byte("POST /setup/activate_window HTTP/1.1\nHost: slot\nContent-Type: application/json\n\n{\"window_name\": \"käse\"}")); !bytes.HasPrefix(a, []byte("200 ")) {
		t.Errorf("activate the hidden window: %s", a)
	}
	eventually(t, "both windows mapped", func() bool { return len(s.screen().Windows) == 2 })
	if w := s.screen().Windows[1]; w.Title != "Käse" {
		t.Errorf("%+v", w)
	}

	// The manager's mark outlives it, its window does not. That it ends fails the slot; the screen is still told.
	s.sh("kill -9 $(pgrep -x openbox)")
	s.wait(guest.PhaseFailed)
	if out, err := s.client.Probe(t.Context()); err != nil || out.Screen.Manager != "" || len(out.Screen.Windows) != 2 {
		t.Errorf("%+v, %v", out.Screen, err)
	}
}

// The slot's own user runs the X server, guestd is root, and nobody has an authority.
func TestScreenOfAnotherUser(t *testing.T) {
	config := standard(xServer)
	config.User, config.Home, config.Display = "nobody", "/absent", &bench.Display{Width: deskWidth, Height: deskHeight, Depth: 24}
	s := launch(t, config, tmpVariable+"=1")
	s.wait(guest.PhaseRunning)
	eventually(t, "a screen", func() bool { return s.screen().Width == deskWidth })
	if out := s.sh("id -un; xwininfo -root | grep Width"); out != "nobody\n  Width: 1280\n" {
		t.Error(out)
	}
}

func TestScreenOf16Bits(t *testing.T) {
	x := xServer
	x.Exec = []string{"Xvfb", proto.Display, "-screen", "0", "101x67x16", "-nolisten", "tcp"}
	s := desk(t, x)
	x11 := s.xgb()
	root := xproto.Setup(x11).DefaultScreen(x11).Root
	if err := xproto.ChangeWindowAttributesChecked(x11, root, xproto.CwBackPixel, []uint32{0xfc00}).Check(); err != nil {
		t.Fatal(err)
	}
	if err := xproto.ClearAreaChecked(x11, false, root, 0, 0, 0, 0).Check(); err != nil {
		t.Fatal(err)
	}
	img := s.picture()
	if b := img.Bounds(); b.Dx() != 101 || b.Dy() != 67 {
		t.Fatal(b)
	}
	if r, g, b, _ := img.At(3, 5).RGBA(); r>>8 != 255 || g>>8 < 126 || g>>8 > 131 || b != 0 {
		t.Errorf("%x %x %x", r>>8, g>>8, b>>8)
	}
}

func (s *testSlot) picture() image.Image {
	s.t.Helper()
	data, err := s.client.Screenshot(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	img, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		s.t.Fatal(err)
	}
	return img
}

// xgb is another client of the slot's X server, in the test's own process.
func (s *testSlot) xgb() *xgb.Conn {
	s.t.Helper()
	s.t.Setenv("XAUTHORITY", os.DevNull)
	xgb.Logger.SetOutput(io.Discard)
	conn, err := net.Dial("unix", fmt.Sprintf("/proc/%d/root%s", s.pid, displaySocket))
	if err != nil {
		s.t.Fatal(err)
	}
	x, err := xgb.NewConnNet(conn)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(x.Close)
	return x
}

// Pixel for pixel what another client sees, and the cursor over it.
func TestScreenshot(t *testing.T) {
	s := desk(t, deskServices(t)...)
	s.settle()
	x := s.xgb()
	root := xproto.Setup(x).DefaultScreen(x).Root
	reply, err := xproto.GetImage(x, xproto.ImageFormatZPixmap, xproto.Drawable(root), 0, 0, deskWidth, deskHeight, ^uint32(0)).Reply()
	if err != nil {
		t.Fatal(err)
	}
	want := image.NewRGBA(image.Rect(0, 0, deskWidth, deskHeight))
	for i := range deskWidth * deskHeight {
		p := reply.Data[4*i:]
		copy(want.Pix[4*i:], []byte{p[2], p[1], p[0], 255})
	}
	cursor := func() (differs image.Rectangle) {
		have := s.picture()
		if have.Bounds() != want.Bounds() {
			t.Fatalf("%v, want %v", have.Bounds(), want.Bounds())
		}
		for y := range deskHeight {
			for x := range deskWidth {
				if color.RGBAModel.Convert(have.At(x, y)) != want.RGBAAt(x, y) {
					differs = differs.Union(image.Rect(x, y, x+1, y+1))
				}
			}
		}
		return differs
	}
	for _, at := range []image.Point{{900, 600}, {0, 0}, {deskWidth - 1, deskHeight - 1}, {deskWidth - 1, 0}, {0, deskHeight - 1}} {
		if err := xproto.WarpPointerChecked(x, 0, root, 0, 0, 0, 0, int16(at.X), int16(at.Y)).Check(); err != nil {
			t.Fatal(err)
		}
		around := image.Rectangle{at, at}.Inset(-20).Intersect(want.Bounds())
		if d := cursor(); d.Empty() || !d.In(around) {
			t.Errorf("pointer at %v: differs in %v, want a cursor within %v", at, d, around)
		}
		if out := string(s.send([]byte("GET /cursor_position HTTP/1.1\nHost: slot\n\n"))); out != fmt.Sprintf("200 application/json\n[%d,%d]\n", at.X, at.Y) {
			t.Error(out)
		}
	}
}

// A dump finds no connection between guestd and the X server.
func TestScreenLeavesNoConnection(t *testing.T) {
	s := desk(t, deskServices(t)...)
	s.settle()
	connected := func() int {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/unix", s.pid))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(text), "/tmp/.X11-unix/X0")
	}
	before := connected()
	late := 0
	for range 50 {
		if _, err := s.client.Screenshot(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.screen()
		// The server has shut it down before the answer, and is about to close it.
		if connected() != before {
			late++
		}
		time.Sleep(10 * time.Millisecond)
		if now := connected(); now != before {
			t.Fatalf("%d sockets of the X server, %d before", now, before)
		}
	}
	if late > 10 {
		t.Errorf("%d of 50 answers came before the X server had closed its end", late)
	}
}

func TestManyAtOnce(t *testing.T) {
	s := desk(t, deskServices(t)...)
	s.settle()
	errs := make(chan error)
	for range 8 {
		go func() {
			_, err := s.client.Screenshot(t.Context())
			errs <- err
		}()
		go func() {
			p, err := s.client.Probe(t.Context())
			if err == nil && p.Screen.Unknown != "" {
				err = errors.New(p.Screen.Unknown)
			}
			errs <- err
		}()
	}
	for range 16 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// A server that does not answer is unknown, and not for ever.
func TestStoppedXServer(t *testing.T) {
	s := desk(t, deskServices(t)...)
	s.settle()
	s.sh("kill -STOP $(pgrep -x Xvfb)")
	begin := time.Now()
	if _, err := s.client.Screenshot(t.Context()); !errors.Is(err, guest.ErrNoScreen) || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("%v", err)
	}
	if v := s.screen(); !strings.Contains(v.Unknown, "timeout") {
		t.Errorf("%+v", v)
	}
	if took := time.Since(begin); took > 2*displayTime+2*time.Second {
		t.Errorf("took %s", took)
	}
	s.sh("kill -CONT $(pgrep -x Xvfb)")
	if v := s.screen(); v.Unknown != "" || len(v.Windows) != 1 {
		t.Errorf("%+v", v)
	}
}

// The slot may put anything in the place of its X server; guestd is its first process and must live.
func TestHostileXServer(t *testing.T) {
	// A set-up of one screen of which all is zero, and the size of that screen.
	const preface = `
import os, socket, struct, sys
os.makedirs("/tmp/.X11-unix", exist_ok=True)
l = socket.socket(socket.AF_UNIX); l.bind("/tmp/.X11-unix/X0"); l.listen(5)
setup = struct.pack("<IIIIHHBBBBBBBBI", 1, 1 << 21, (1 << 21) - 1, 0, 0, 65535, 1, 0, 0, 0, 32, 32, 8, 255, 0) + bytes(40)
hello = struct.pack("<BBHHH", 1, 0, 11, 0, len(setup) // 4) + setup
def geometry(): return struct.pack("<BBHIIhhHHH10x", 1, 24, 1, 0, 1, 0, 0, 1280, 800, 0)
while True:
    c, _ = l.accept()
    c.recv(4096)
    try:
`
	for name, reply := range map[string]string{
		"closes":         `c.close(); continue`,
		"refuses":        `c.send(struct.pack("<BBHHH", 0, 4, 11, 0, 1) + b"none")`,
		"empty set-up":   `c.send(struct.pack("<BBHHH", 1, 0, 11, 0, 0))`,
		"no screen":      `c.send(hello.replace(hello, struct.pack("<BBHHH", 1, 0, 11, 0, 8) + setup[:20] + bytes(12)))`,
		"length wraps":   `c.send(hello + struct.pack("<BBHI24x", 1, 0, 1, 0x3ffffffc))`,
		"length is huge": `c.send(hello + struct.pack("<BBHI24x", 1, 0, 1, 0xffffffff))`,
		"length is 1 G":  `c.send(hello + struct.pack("<BBHI24x", 1, 0, 1, 1 << 28))`,
		"generic event":  `c.send(hello + struct.pack("<BBHI24x", 35, 0, 1, 100))`,
		"unasked reply":  `c.send(hello + struct.pack("<BBHI24x", 1, 0, 77, 0) * 100)`,
		"events":         `c.send(hello + bytes([2]) * 32 * 6000)`,
		"errors":         `c.send(hello + bytes(32 * 6000))`,
		"noise":          `c.send(hello + os.urandom(1 << 16))`,
		"empty replies":  `c.send(hello + geometry() + b"".join(struct.pack("<BBHI24x", 1, 32, i, 0) for i in range(2, 40)))`,
		"short replies":  `c.send(hello + geometry() + b"".join(struct.pack("<BBHIII16x", 1, 32, i, 0, 1, 8) for i in range(2, 40)))`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of their time is the waiting for an answer that does not come
			s := desk(t, bench.Service{Name: "x", Exec: []string{"python3", "-c", preface + "        " + reply + "\n        c.recv(65536)\n        c.recv(65536)\n        c.close()\n    except OSError: pass\n"},
				Ready: "/tmp/.X11-unix/X0"})
			if _, err := s.client.Screenshot(t.Context()); !errors.Is(err, guest.ErrNoScreen) {
				t.Errorf("screenshot: %v", err)
			}
			if v := s.screen(); v.Unknown == "" && (v.Manager != "" || len(v.Windows) > 0) {
				t.Errorf("%+v", v)
			} else {
				t.Log(v.Unknown)
			}
			if out := s.sh("echo well"); out != "well\n" {
				t.Error(out)
			}
		})
	}
}

// What a screenshot costs, and that its memory is given back: it would be part of each checkpoint.
func TestCostOfScreenshot(t *testing.T) {
	s := desk(t, deskServices(t)...)
	s.screen()
	first, firstOwn := s.status("VmRSS"), s.status("Anonymous")
	s.settle()
	size := 0
	took := median(func() {
		data, err := s.client.Screenshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		size = len(data)
	})
	after, afterOwn, peak := s.status("VmRSS"), s.status("Anonymous"), s.status("VmHWM")
	probe := median(func() { s.screen() })
	t.Logf("screenshot %s, %d bytes; probe with screen %s", took, size, probe)
	t.Logf("RSS %d KiB, then %d KiB, at most %d KiB; anonymous %d KiB, then %d KiB", first, after, peak, firstOwn, afterOwn)
	if took > 250*time.Millisecond || afterOwn > firstOwn+6<<10 || peak > 32<<10 {
		t.Error("screenshots have become heavy")
	}
}

// The rule of package screen on a desk as it comes up: black before anybody has
// drawn, black with its window manager, ready with its window. The last frame is
// that package's fixture.
func TestDeskComesUp(t *testing.T) {
	want := screenrule.Want{Width: deskWidth, Height: deskHeight, Windows: []bench.Window{{Class: "XTerm"}}}
	services := deskServices(t)
	judge := func(s *testSlot) (png []byte, facts proto.Screen, findings []bench.Finding) {
		t.Helper()
		var frames [2]image.Image
		for i := range frames {
			var err error
			if png, err = s.client.Screenshot(t.Context()); err != nil {
				t.Fatal(err)
			}
			if frames[i], err = screenrule.Decode(png); err != nil {
				t.Fatal(err)
			}
		}
		facts = *s.screen()
		return png, facts, screenrule.Judge(frames[0], frames[1], facts, want)
	}
	// Whether there are enough colours depends on the cursor: openbox's has as many as it takes, which was the false pass.
	subjects := func(findings []bench.Finding) (out []string) {
		for _, f := range findings {
			if f.Subject != "colours" {
				out = append(out, f.Subject)
			}
		}
		return out
	}
	dark := []string{"lit", "dominant", "texture"}

	refused := func(s *testSlot, what string, want ...string) {
		t.Helper()
		var got []bench.Finding
		defer func() {
			if t.Failed() {
				t.Logf("%s: %s", what, screenrule.Text(got))
			}
		}()
		// What is still being drawn, or taken away, is refused for that too.
		eventually(t, what, func() bool {
			_, _, got = judge(s)
			return slices.Equal(subjects(got), append(want, dark...))
		})
	}
	s := desk(t, services[0])
	refused(s, "an X server alone", "manager", "window", "window XTerm")
	s = desk(t, services[:2]...)
	refused(s, "a window manager on black", "window", "window XTerm")
	full := services[2]
	full.Exec = []string{"xterm", "-T", "A terminal", "-fa", "DejaVu Sans Mono", "-fs", "11", "-geometry", "120x38+20+20", "-e",
		"sh", "-c", `for i in $(seq 36); do printf '\033[3%dm' $((i % 8)); for j in $(seq 22); do printf '%4d ' $((i * j)); done; echo; done; exec sleep 1000`}
	s = desk(t, services[0], services[1], full)
	s.settle()
	png, facts, got := judge(s)
	if len(got) > 0 {
		t.Errorf("a desk: %s", screenrule.Text(got))
	}
	// A program that went away leaves a desk without its window.
	s.sh("kill $(pgrep -x xterm)")
	s.wait(guest.PhaseFailed)
	refused(s, "a window that went away", "window", "window XTerm")
	if *update {
		facts.Windows[0].Pid = 0 // differs from one run to another
		text, err := json.MarshalIndent(facts, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		for name, data := range map[string][]byte{"desk.png": png, "desk.json": append(text, '\n')} {
			if err := os.WriteFile(filepath.Join("../../engine/screen/testdata", name), data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}
