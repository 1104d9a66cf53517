"""The part of PyAutoGUI's interface that acts, over XTEST.

Agents that were written for the public OSWorld server send it Python text that
imports pyautogui. This module lets that text run in an image without the real
package and the dozen that it needs: the same names, parameters and key names,
through python3-xlib alone. It takes no screenshots and shows no message boxes;
asking for one is an AttributeError, not a silence.

Always holds: when a function returns, the X server has taken every event that
it sent (XSync); a key or button that nothing stands for is a ValueError.
"""

import contextlib
import math
import os
import time
from collections import namedtuple

from Xlib import X, XK, display
from Xlib.ext import xtest

# Seconds after each call, as in PyAutoGUI.
PAUSE = 0.1
# A pointer in the top left corner raises FailSafeException, as in PyAutoGUI.
FAILSAFE = True
MINIMUM_DURATION = 0.1

LEFT, MIDDLE, RIGHT, PRIMARY, SECONDARY = "left", "middle", "right", "primary", "secondary"

Point = namedtuple("Point", "x y")
Size = namedtuple("Size", "width height")


class PyAutoGUIException(Exception):
    pass


class FailSafeException(PyAutoGUIException):
    pass


BUTTONS = {LEFT: 1, PRIMARY: 1, MIDDLE: 2, RIGHT: 3, SECONDARY: 3, 1: 1, 2: 2, 3: 3}

# Names that are no keysym names, as PyAutoGUI has them.
KEYS = {
    "add": "KP_Add", "alt": "Alt_L", "altleft": "Alt_L", "altright": "Alt_R", "apps": "Menu",
    "backspace": "BackSpace", "capslock": "Caps_Lock", "cmd": "Super_L", "command": "Super_L", "ctrl": "Control_L",
    "ctrlleft": "Control_L", "ctrlright": "Control_R", "decimal": "KP_Decimal", "del": "Delete", "delete": "Delete",
    "divide": "KP_Divide", "down": "Down", "end": "End", "enter": "Return", "esc": "Escape", "escape": "Escape",
    "help": "Help", "home": "Home", "insert": "Insert", "left": "Left", "menu": "Menu", "multiply": "KP_Multiply",
    "numlock": "Num_Lock", "option": "Alt_L", "optionleft": "Alt_L", "optionright": "Alt_R", "pagedown": "Next",
    "pageup": "Prior", "pause": "Pause", "pgdn": "Next", "pgup": "Prior", "print": "Print", "printscreen": "Print",
    "prntscrn": "Print", "prtsc": "Print", "prtscr": "Print", "return": "Return", "right": "Right",
    "scrolllock": "Scroll_Lock", "shift": "Shift_L", "shiftleft": "Shift_L", "shiftright": "Shift_R", "space": "space",
    "subtract": "KP_Subtract", "super": "Super_L", "tab": "Tab", "up": "Up", "win": "Super_L", "winleft": "Super_L",
    "winright": "Super_R", "\n": "Return", "\r": "Return", "\t": "Tab",
}
KEYS.update({"f%d" % i: "F%d" % i for i in range(1, 25)})
KEYS.update({"num%d" % i: "KP_%d" % i for i in range(10)})

_display = None


def _open():
    global _display
    if _display is None:
        _display = display.Display(os.environ.get("DISPLAY", ":0"))
        if not _display.has_extension("XTEST"):
            raise PyAutoGUIException("the X server has no XTEST")
    return _display


def _send(kind, detail=0, x=0, y=0):
    d = _open()
    xtest.fake_input(d, kind, detail, x=x, y=y)
    d.sync()


def _finish(pause=True):
    if pause and PAUSE:
        time.sleep(PAUSE)


def _check():
    if FAILSAFE and position() == (0, 0):
        raise FailSafeException("the pointer is in a corner of the screen; set pyautogui.FAILSAFE = False to go on")


# Where the pointer is and how large the screen.


def size():
    screen = _open().screen()
    return Size(screen.width_in_pixels, screen.height_in_pixels)


def position(x=None, y=None):
    p = _open().screen().root.query_pointer()
    return Point(p.root_x if x is None else int(x), p.root_y if y is None else int(y))


def onScreen(x, y=None):
    x, y = _pair(x, y)
    width, height = size()
    return 0 <= x < width and 0 <= y < height


# Tweens: how a movement that takes time goes from 0 to 1.


def linear(n):
    return n


def _ease(power):
    def ease_in(n):
        return n ** power

    def ease_out(n):
        return 1 - (1 - n) ** power

    def ease_in_out(n):
        return ease_in(2 * n) / 2 if n < 0.5 else 1 - ease_in(2 * (1 - n)) / 2

    return ease_in, ease_out, ease_in_out


easeInQuad, easeOutQuad, easeInOutQuad = _ease(2)
easeInCubic, easeOutCubic, easeInOutCubic = _ease(3)
easeInQuart, easeOutQuart, easeInOutQuart = _ease(4)
easeInQuint, easeOutQuint, easeInOutQuint = _ease(5)


def easeInSine(n):
    return 1 - math.cos(n * math.pi / 2)


def easeOutSine(n):
    return math.sin(n * math.pi / 2)


def easeInOutSine(n):
    return (1 - math.cos(n * math.pi)) / 2


# The mouse.


def _pair(x, y):
    if x is not None and not isinstance(x, (int, float)):
        x, y = x[0], x[1]
    here = position()
    return int(here.x if x is None else x), int(here.y if y is None else y)


def _glide(x, y, duration, tween):
    """Moves the pointer, no further than the screen goes."""
    width, height = size()
    x, y = min(max(x, 0), width - 1), min(max(y, 0), height - 1)
    start = position()
    if duration > MINIMUM_DURATION:
        steps = max(1, min(int(duration / 0.02), max(abs(x - start.x), abs(y - start.y))))
        for i in range(1, steps):
            at = tween(i / steps)
            _send(X.MotionNotify, x=round(start.x + (x - start.x) * at), y=round(start.y + (y - start.y) * at))
            time.sleep(duration / steps)
    _send(X.MotionNotify, x=x, y=y)


def moveTo(x=None, y=None, duration=0.0, tween=linear, logScreenshot=False, _pause=True):
    _check()
    _glide(*_pair(x, y), duration, tween)
    _finish(_pause)


def moveRel(xOffset=None, yOffset=None, duration=0.0, tween=linear, logScreenshot=False, _pause=True):
    if xOffset is not None and not isinstance(xOffset, (int, float)):
        xOffset, yOffset = xOffset[0], xOffset[1]
    here = position()
    moveTo(here.x + (xOffset or 0), here.y + (yOffset or 0), duration, tween, _pause=_pause)


move = moveRel


def _button(button):
    if button not in BUTTONS:
        raise ValueError("no mouse button %r" % (button,))
    return BUTTONS[button]


def mouseDown(x=None, y=None, button=PRIMARY, duration=0.0, tween=linear, logScreenshot=None, _pause=True):
    number = _button(button)
    _check()
    if x is not None or y is not None:
        _glide(*_pair(x, y), duration, tween)
    _send(X.ButtonPress, number)
    _finish(_pause)


def mouseUp(x=None, y=None, button=PRIMARY, duration=0.0, tween=linear, logScreenshot=None, _pause=True):
    number = _button(button)
    _check()
    if x is not None or y is not None:
        _glide(*_pair(x, y), duration, tween)
    _send(X.ButtonRelease, number)
    _finish(_pause)


def click(x=None, y=None, clicks=1, interval=0.0, button=PRIMARY, duration=0.0, tween=linear, logScreenshot=None, _pause=True):
    number = _button(button)
    _check()
    if x is not None or y is not None:
        _glide(*_pair(x, y), duration, tween)
    for i in range(clicks):
        if i:
            time.sleep(interval)
        _send(X.ButtonPress, number)
        _send(X.ButtonRelease, number)
    _finish(_pause)


def leftClick(x=None, y=None, interval=0.0, duration=0.0, tween=linear, logScreenshot=None, _pause=True):
    click(x, y, 1, interval, LEFT, duration, tween, _pause=_pause)


def middleClick(x=None, y=None, interval=0.0, duration=0.0, tween=linear, logScreenshot=None, _pause=True):
    click(x, y, 1, interval, MIDDLE, duration, tween, _pause=_pause)


def rightClick(x=None, y=None, interval=0.0, duration=0.0, tween=linear, logScreenshot=None, _pause=True):
    click(x, y, 1, interval, RIGHT, duration, tween, _pause=_pause)


def doubleClick(x=None, y=None, interval=0.0, button=LEFT, duration=0.0, tween=linear, logScreenshot=None, _pause=True):
    click(x, y, 2, interval, button, duration, tween, _pause=_pause)


def tripleClick(x=None, y=None, interval=0.0, button=LEFT, duration=0.0, tween=linear, logScreenshot=None, _pause=True):
    click(x, y, 3, interval, button, duration, tween, _pause=_pause)


def dragTo(x=None, y=None, duration=0.0, tween=linear, button=PRIMARY, logScreenshot=None, _pause=True, mouseDownUp=True):
    x, y = _pair(x, y)
    if mouseDownUp:
        mouseDown(button=button, _pause=False)
    _check()
    _glide(x, y, duration, tween)
    if mouseDownUp:
        mouseUp(button=button, _pause=False)
    _finish(_pause)


def dragRel(xOffset=0, yOffset=0, duration=0.0, tween=linear, button=PRIMARY, logScreenshot=None, _pause=True, mouseDownUp=True):
    if not isinstance(xOffset, (int, float)):
        xOffset, yOffset = xOffset[0], xOffset[1]
    here = position()
    dragTo(here.x + (xOffset or 0), here.y + (yOffset or 0), duration, tween, button, _pause=_pause, mouseDownUp=mouseDownUp)


drag = dragRel


def _wheel(clicks, positive, negative, x, y, pause):
    _check()
    if x is not None or y is not None:
        _glide(*_pair(x, y), 0, linear)
    for _ in range(abs(int(clicks))):
        button = positive if clicks > 0 else negative
        _send(X.ButtonPress, button)
        _send(X.ButtonRelease, button)
    _finish(pause)


def vscroll(clicks, x=None, y=None, logScreenshot=None, _pause=True):
    _wheel(clicks, 4, 5, x, y, _pause)


scroll = vscroll


def hscroll(clicks, x=None, y=None, logScreenshot=None, _pause=True):
    _wheel(clicks, 7, 6, x, y, _pause)


# The keyboard.


def _keysym(key):
    name = KEYS.get(key) or KEYS.get(key.lower())
    if name:
        return XK.string_to_keysym(name)
    if len(key) == 1 and key.isprintable():
        code = ord(key)
        return code if 0x20 <= code <= 0xFF else 0x01000000 + code  # X11 protocol, appendix A
    return XK.string_to_keysym(key)  # a keysym's own name; 0 if it is none


def isValidKey(key):
    return bool(_keysym(key))


_spares = {}


def _spare(d, keysym):
    """Gives a keysym that the keyboard lacks to a keycode that has none. The
    keycode keeps it: a client looks a key up some time after it was pressed."""
    if keysym in _spares:
        return _spares[keysym]
    first, last = d.display.info.min_keycode, d.display.info.max_keycode
    mapping = d.get_keyboard_mapping(first, last - first + 1)
    for offset in reversed(range(len(mapping))):
        code = first + offset
        if not any(mapping[offset]) and code not in _spares.values():
            d.change_keyboard_mapping(code, [[keysym] * len(mapping[offset])])
            d.sync()
            _spares[keysym] = code
            return code
    raise PyAutoGUIException("no keycode is free for keysym %#x" % keysym)


def _lookup(key):
    """The keycode of a key, and whether it needs Shift."""
    keysym = _keysym(key)
    if not keysym:
        raise ValueError("no key %r" % (key,))
    d = _open()
    levels = dict((level, code) for code, level in reversed(list(d.keysym_to_keycodes(keysym))))
    if 0 in levels:
        return levels[0], False
    if 1 in levels:
        return levels[1], True
    return _spare(d, keysym), False


SHIFT = "shift"


def keyDown(key, logScreenshot=None, _pause=True):
    code, shifted = _lookup(key)
    _check()
    if shifted:
        shift, _ = _lookup(SHIFT)
        _send(X.KeyPress, shift)
        _send(X.KeyPress, code)
        _send(X.KeyRelease, shift)
    else:
        _send(X.KeyPress, code)
    _finish(_pause)


def keyUp(key, logScreenshot=None, _pause=True):
    code, _ = _lookup(key)
    _check()
    _send(X.KeyRelease, code)
    _finish(_pause)


def press(keys, presses=1, interval=0.0, logScreenshot=None, _pause=True):
    keys = [keys] if isinstance(keys, str) else list(keys)
    for _ in range(presses):
        for key in keys:
            keyDown(key, _pause=False)
            keyUp(key, _pause=False)
            time.sleep(interval)
    _finish(_pause)


@contextlib.contextmanager
def hold(keys, logScreenshot=None, _pause=True):
    keys = [keys] if isinstance(keys, str) else list(keys)
    down = []
    try:
        for key in keys:
            keyDown(key, _pause=False)
            down.append(key)
        _finish(_pause)
        yield
    finally:
        for key in reversed(down):
            keyUp(key, _pause=False)
        _finish(_pause)


def hotkey(*args, logScreenshot=None, interval=0.0, _pause=True):
    keys = [key for arg in args for key in ([arg] if isinstance(arg, str) else arg)]
    down = []
    try:
        for key in keys:
            keyDown(key, _pause=False)
            down.append(key)
            time.sleep(interval)
    finally:
        for key in reversed(down):
            keyUp(key, _pause=False)
            time.sleep(interval)
    _finish(_pause)


def typewrite(message, interval=0.0, logScreenshot=None, _pause=True):
    """Types each letter of a text, or presses each key of a list."""
    for key in message:
        press(key, _pause=False)
        time.sleep(interval)
    _finish(_pause)


write = typewrite


def sleep(seconds):
    time.sleep(seconds)
