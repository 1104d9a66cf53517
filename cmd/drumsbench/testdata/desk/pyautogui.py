"""What pyautogui sends is what a client of the X server gets. Run in a desk; raises where it is not."""

import subprocess
import time

import pyautogui as p
from Xlib import X, XK, display

p.PAUSE = 0
d = display.Display(":0")
width, height = p.size()
assert (width, height) == (1280, 800), (width, height)
# A window of our own over the whole screen, which no window manager touches.
window = d.screen().root.create_window(
    0, 0, width, height, 0, X.CopyFromParent, override_redirect=True,
    event_mask=X.ButtonPressMask | X.ButtonReleaseMask | X.KeyPressMask | X.KeyReleaseMask | X.PointerMotionMask)
window.map()
d.sync()
window.set_input_focus(X.RevertToParent, X.CurrentTime)
d.sync()


def events(*kinds):
    """What came since, as (kind, detail, x, y); the server took all of it before pyautogui returned."""
    d.sync()
    got = []
    while d.pending_events():
        e = d.next_event()
        if e.type in (X.KeyPress, X.KeyRelease, X.ButtonPress, X.ButtonRelease, X.MotionNotify):
            got.append((e.type, e.detail, e.root_x, e.root_y))
        elif e.type == X.MappingNotify and e.request == X.MappingKeyboard:
            d.refresh_keyboard_mapping(e)
    return [e for e in got if not kinds or e[0] in kinds]


def buttons():
    return [(e[1], e[2], e[3]) for e in events(X.ButtonPress)]


def equal(have, want):
    assert have == want, "%r, want %r" % (have, want)


events()
p.moveTo(10, 20)
equal(p.position(), (10, 20))
p.moveTo((300, 200), duration=0.3, tween=p.easeInOutQuad)
equal(tuple(p.position()), (300, 200))
assert len(events(X.MotionNotify)) > 5, "a slow movement is one jump"
p.move(-50, 25)
equal(tuple(p.position()), (250, 225))
p.moveTo(None, 100)
equal(tuple(p.position()), (250, 100))
p.moveTo(99999, 99999)
equal(tuple(p.position()), (width - 1, height - 1))
assert p.onScreen(0, 0) and not p.onScreen(width, 0)
events()

p.click(100, 110)
equal(buttons(), [(1, 100, 110)])
p.doubleClick(120, 130)
equal(buttons(), [(1, 120, 130)] * 2)
p.click(x=5, y=6, clicks=3, interval=0.01, button="right")
equal(buttons(), [(3, 5, 6)] * 3)
p.middleClick()
equal(buttons(), [(2, 5, 6)])
p.scroll(3)
p.scroll(-2, 40, 41)
p.hscroll(1)
equal([b[0] for b in buttons()], [4, 4, 4, 5, 5, 7])
p.mouseDown(200, 200)
p.mouseUp(210, 210)
equal([(e[0], e[2], e[3]) for e in events(X.ButtonPress, X.ButtonRelease)], [(X.ButtonPress, 200, 200), (X.ButtonRelease, 210, 210)])
p.moveTo(50, 50)
events()
p.dragTo(90, 95, duration=0.2, button="left")
got = events()
equal((got[0][0], got[0][2:], got[-1][0], got[-1][2:]), (X.ButtonPress, (50, 50), X.ButtonRelease, (90, 95)))
assert len(got) > 4, got

XK.load_keysym_group("latin1")


def keys(*kinds):
    return [(e[0] == X.KeyPress, e[1]) for e in events(X.KeyPress, X.KeyRelease)]


def code(name):
    return d.keysym_to_keycode(XK.string_to_keysym(name))


p.hotkey("ctrl", "shift", "t")
want = [code("Control_L"), code("Shift_L"), code("t")]
equal(keys(), [(True, c) for c in want] + [(False, c) for c in reversed(want)])
p.press(["left", "f5", "pagedown", "esc"], presses=2)
equal([c for down, c in keys() if down], [code(n) for n in ("Left", "F5", "Next", "Escape")] * 2)
with p.hold("shift"):
    p.press("a")
equal(keys(), [(True, code("Shift_L")), (True, code("a")), (False, code("a")), (False, code("Shift_L"))])
for wrong in ("no such key", ""):
    try:
        p.press(wrong)
    except ValueError:
        continue
    raise AssertionError("a key that is none is pressed in silence: %r" % wrong)
try:
    p.click(button="fourth")
except ValueError:
    pass
else:
    raise AssertionError("a button that is none is clicked in silence")
p.moveTo(0, 0)
try:
    p.click()
except p.FailSafeException:
    pass
else:
    raise AssertionError("no fail-safe in the corner")
p.FAILSAFE = False
p.click(640, 400)
equal(buttons(), [(1, 640, 400)])
window.destroy()
d.sync()

# Every character that is typed into the terminal arrives, whatever the keyboard has.
text = "".join(map(chr, range(0x20, 0x7F))) + "\u00fc\u00df\u00e9 \u20ac \u2192 \u0416 \u4e2d"
p.click(640, 400)
deadline = time.time() + 20
while d.get_input_focus().focus in (X.NONE, X.PointerRoot, d.screen().root):
    assert time.time() < deadline, "the terminal was clicked and has no focus"
    time.sleep(0.02) # the window manager gives it, in its own time
p.write("cat >/tmp/typed\n")
have = None


def typed():
    """What the terminal has taken so far; None before the program is there."""
    try:
        with open("/tmp/typed", encoding="utf-8") as f:
            return f.read()
    except FileNotFoundError:
        return None


def until(done):
    global have
    deadline = time.time() + 20
    while time.time() < deadline:
        have = typed()
        if done():
            break
        time.sleep(0.05)


until(lambda: have is not None)
p.write(text + "\n")
until(lambda: have == text + "\n")
p.hotkey("ctrl", "d")
equal(have, text + "\n")
equal(subprocess.run(["python", "-c", "import pyautogui; print(pyautogui.position())"], capture_output=True, text=True).stdout, "Point(x=640, y=400)\n")
print("all of it")
