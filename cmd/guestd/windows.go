package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
)

// window is a window, its number, which only the X server understands, and whether it is mapped.
type window struct {
	id     windowID
	mapped bool
	proto.Window
}

// Names of what the window manager tells, Extended Window Manager Hints 1.5.
const (
	wmCheck   = "_NET_SUPPORTING_WM_CHECK"
	wmName    = "_NET_WM_NAME"
	wmPid     = "_NET_WM_PID"
	wmClients = "_NET_CLIENT_LIST"
	wmWork    = "_NET_WORKAREA"
	wmDesktop = "_NET_CURRENT_DESKTOP"
	wmActive  = "_NET_ACTIVE_WINDOW"
	wmCloseIt = "_NET_CLOSE_WINDOW"
)

// view is the screen as it is now, or the reason why nobody can tell.
func (s *screen) view() *proto.Screen {
	out := &proto.Screen{Windows: []proto.Window{}}
	if err := s.with(func(c *connection) error { return c.view(out) }); err != nil {
		return &proto.Screen{Unknown: err.Error(), Windows: []proto.Window{}}
	}
	return out
}

func (c *connection) view(out *proto.Screen) error {
	out.Width, out.Height, out.Depth = c.width, c.height, c.depth
	atoms, err := c.atoms(wmCheck, wmName, wmPid, wmClients, wmWork, wmDesktop)
	if err != nil {
		return err
	}
	if out.Manager, err = c.manager(atoms); err != nil {
		return err
	}
	if out.Work, err = c.work(atoms); err != nil {
		return err
	}
	out.Windows, err = c.windows(atoms)
	return err
}

// manager is the name of the window manager that lives; see proto.Screen.
func (c *connection) manager(atoms map[string]atom) (string, error) {
	p, err := c.get(c.root, atoms[wmCheck], 4)
	if err != nil {
		return "", err
	}
	mark := p.numbers()
	if len(mark) != 1 {
		return "", nil
	}
	w := windowID(mark[0])
	p, err = c.get(w, atoms[wmCheck], 4)
	if isGone(err) {
		return "", nil // it died
	}
	if err != nil {
		return "", err
	}
	if back := p.numbers(); len(back) != 1 || back[0] != mark[0] {
		return "", nil
	}
	if p, err = c.get(w, atoms[wmName], proto.MaxText); err != nil && !isGone(err) {
		return "", err
	}
	if name := printable(p.octets(proto.MaxText)); name != "" {
		return name, nil
	}
	return "window " + strconv.FormatUint(uint64(mark[0]), 10), nil
}

func (c *connection) work(atoms map[string]atom) (proto.Rect, error) {
	whole := proto.Rect{Width: c.width, Height: c.height}
	const most = 4 * 4 * 64 // of so many desktops
	p, err := c.get(c.root, atoms[wmWork], most)
	if err != nil {
		return whole, err
	}
	areas := p.numbers()
	if p, err = c.get(c.root, atoms[wmDesktop], 4); err != nil {
		return whole, err
	}
	current := 0
	if n := p.numbers(); len(n) == 1 && int(n[0]) < len(areas)/4 {
		current = int(n[0])
	}
	if len(areas) < 4 {
		return whole, nil
	}
	a := areas[4*current:]
	return proto.Rect{X: int(int32(a[0])), Y: int(int32(a[1])), Width: int(int32(a[2])), Height: int(int32(a[3]))}, nil
}

// windows are the mapped windows; see proto.Screen.
func (c *connection) windows(atoms map[string]atom) ([]proto.Window, error) {
	managed, err := c.managed(atoms)
	if err != nil {
		return nil, err
	}
	children, err := c.children()
	if err != nil {
		return nil, err
	}
	list, seen := managed, make(map[windowID]bool)
	for _, w := range managed {
		seen[w] = true
	}
	for _, w := range children {
		if !seen[w] {
			list = append(list, w)
		}
	}
	out := []proto.Window{}
	for i, id := range list {
		w, err := c.describe(id, atoms)
		if isGone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !w.mapped || (i >= len(managed) && w.Instance == "" && w.Class == "") {
			continue
		}
		if len(out) == proto.MaxWindows {
			return nil, fmt.Errorf("there are more than %d mapped windows", proto.MaxWindows)
		}
		out = append(out, w.Window)
	}
	return out, nil
}

// maxListed is how many windows are looked at, mapped or not.
const maxListed = 8 * proto.MaxWindows

// managed are the windows that the window manager has, mapped or not.
func (c *connection) managed(atoms map[string]atom) ([]windowID, error) {
	p, err := c.get(c.root, atoms[wmClients], 4*maxListed)
	if err != nil {
		return nil, err
	}
	if p.left > 0 {
		return nil, fmt.Errorf("the window manager has more than %d windows", maxListed)
	}
	var out []windowID
	for _, id := range p.numbers() {
		out = append(out, windowID(id))
	}
	return out, nil
}

// children are those of the root.
func (c *connection) children() ([]windowID, error) {
	f, err := c.ask(newRequest(opQueryTree, 0, uint32(c.root)))
	if err != nil {
		return nil, err
	}
	f.bytes(16)
	n := int(f.u16())
	f.bytes(14)
	if n > maxListed {
		return nil, fmt.Errorf("the root window has %d children, more than %d", n, maxListed)
	}
	var out []windowID
	for range n {
		out = append(out, windowID(f.u32()))
	}
	return out, nil
}

// describe reads a window, mapped or not.
func (c *connection) describe(id windowID, atoms map[string]atom) (window, error) {
	w := window{id: id}
	replies, refused, err := c.askAll(
		newRequest(opGetWindowAttributes, 0, uint32(id)),
		newRequest(opGetGeometry, 0, uint32(id)),
		newRequest(opTranslate, 0, uint32(id), uint32(c.root), 0),
		getProperty(id, atomWMClass, proto.MaxText),
		getProperty(id, atomWMName, proto.MaxText),
		// Of a property whose name nobody has used there is nothing to read, and any other name will do.
		getProperty(id, cmp.Or(atoms[wmName], atomWMName), proto.MaxText),
		getProperty(id, cmp.Or(atoms[wmPid], atomWMName), 4),
	)
	if err := cmp.Or(refused, err); err != nil {
		return w, err
	}
	attributes, geometry, place := replies[0], replies[1], replies[2]
	attributes.bytes(26)
	const viewable = 2
	w.mapped = attributes.u8() == viewable
	geometry.bytes(16)
	place.bytes(12)
	w.Rect = proto.Rect{X: int(int16(place.u16())), Y: int(int16(place.u16())), Width: int(geometry.u16()), Height: int(geometry.u16())}

	parts := strings.Split(replies[3].property().octets(proto.MaxText), "\x00")
	w.Instance = printable(parts[0])
	if len(parts) > 1 {
		w.Class = printable(parts[1])
	}
	if w.Title = printable(replies[5].property().octets(proto.MaxText)); w.Title == "" || atoms[wmName] == atomNone {
		w.Title = printable(latin1(replies[4].property().octets(proto.MaxText)))
	}
	if v := replies[6].property().numbers(); len(v) == 1 && v[0] < 1<<31 {
		w.Pid = int(v[0])
	}
	return w, nil
}

// isGone: the window ended between its listing and now.
func isGone(err error) bool { return refusedWith(err, badWindow, badDrawable) }

func printable(s string) string { return strings.ToValidUTF8(strings.TrimRight(s, "\x00"), "\uFFFD") }

// latin1 is what WM_NAME is written in, unless it is UTF-8 all the same.
func latin1(s string) string {
	if strings.ToValidUTF8(s, "") == s {
		return s
	}
	var b strings.Builder
	for _, c := range []byte(s) {
		b.WriteRune(rune(c))
	}
	return b.String()
}

// matches is the way of wmctrl(1); see proto.WindowRequest.
func (w window) matches(q proto.WindowRequest) bool {
	have := w.Title
	if q.ByClass {
		have = w.Instance + "." + w.Class
	}
	if q.Strict {
		return have == q.WindowName
	}
	return strings.Contains(strings.ToLower(have), strings.ToLower(q.WindowName))
}

var (
	errNoWindow  = errors.New("no such window")
	errNoManager = errors.New("no window manager lives on the screen")
)

// find is the first managed window, in the order of its manager, that fits.
// Hidden windows are looked at too: they are there to be activated.
func (c *connection) find(fits func(window) bool) (window, map[string]atom, error) {
	atoms, err := c.atoms(wmCheck, wmName, wmPid, wmClients, wmActive, wmCloseIt)
	if err != nil {
		return window{}, nil, err
	}
	if name, err := c.manager(atoms); err != nil || name == "" {
		return window{}, nil, cmp.Or(err, errNoManager)
	}
	list, err := c.managed(atoms)
	if err != nil {
		return window{}, nil, err
	}
	for _, id := range list {
		w, err := c.describe(id, atoms)
		if isGone(err) {
			continue
		}
		if err != nil || fits(w) {
			return w, atoms, err
		}
	}
	return window{}, nil, errNoWindow
}

// tell sends a request about a window to the window manager.
func (c *connection) tell(w window, what atom) error {
	if what == atomNone {
		return errNoManager // nobody has ever listened for it
	}
	const (
		substructure = 1<<19 | 1<<20 // what a window manager listens for on the root: notify and redirect
		bits         = 32
		pager        = 2 // the source: a user's tool, not the window's own program
	)
	event := newRequest(opSendEvent, 0, uint32(c.root), substructure,
		eventClient|bits<<8, uint32(w.id), uint32(what), pager, 0, 0, 0, 0)
	return c.do(event)
}

// How long a window manager and a program may take for what they are told, and how often is looked.
const (
	activateTime = 2 * time.Second
	closeTime    = 5 * time.Second
	windowPeriod = 20 * time.Millisecond
)

// activate makes a window the active one, and sees that it is.
func (s *screen) activate(fits func(window) bool) error {
	var id windowID
	err := s.with(func(c *connection) error {
		w, atoms, err := c.find(fits)
		if err != nil {
			return err
		}
		id = w.id
		return c.tell(w, atoms[wmActive])
	})
	if err != nil {
		return err
	}
	return s.until(activateTime, "it is not the active window", func(c *connection) (bool, error) {
		atoms, err := c.atoms(wmActive)
		if err != nil {
			return false, err
		}
		p, err := c.get(c.root, atoms[wmActive], 4)
		if err != nil {
			return false, err
		}
		n := p.numbers()
		return len(n) == 1 && windowID(n[0]) == id, nil
	})
}

// close asks a window's program to close it, and sees that it is gone.
func (s *screen) close(fits func(window) bool) error {
	var id windowID
	err := s.with(func(c *connection) error {
		w, atoms, err := c.find(fits)
		if err != nil {
			return err
		}
		id = w.id
		return c.tell(w, atoms[wmCloseIt])
	})
	if err != nil {
		return err
	}
	return s.until(closeTime, "it is still there", func(c *connection) (bool, error) {
		atoms, err := c.atoms(wmClients)
		if err != nil {
			return false, err
		}
		list, err := c.managed(atoms)
		if err != nil {
			return false, err
		}
		return !slices.Contains(list, id), nil
	})
}

// until looks until holds does; each look is a connection of its own.
func (s *screen) until(limit time.Duration, otherwise string, holds func(*connection) (bool, error)) error {
	for begin := time.Now(); ; time.Sleep(windowPeriod) {
		ok := false
		err := s.with(func(c *connection) (err error) {
			ok, err = holds(c)
			return err
		})
		if err != nil || ok {
			return err
		}
		if time.Since(begin) > limit {
			return fmt.Errorf("%s after %s", otherwise, limit)
		}
	}
}
