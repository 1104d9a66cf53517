#!/usr/bin/python3
"""The desktop of the desk image: a wallpaper, and an icon for each entry of ~/Desktop.

It draws what is there and does nothing else: folders are opened and files are
changed in the terminal. What the screen shows is the directory as it was read at
most PERIOD seconds ago, so that a rename can be seen in a screenshot. Its window
is as large as the screen and of EWMH's desktop type, so it stays below the others.

  desktop.py READY    after each frame writes the names that it shows to the file
                      READY, one a line; the file is there after the first frame
"""

import os
import select
import sys

from Xlib import X, Xatom, display

PERIOD = 0.05
CELL = (112, 96)
MARGIN = 24


def directory():
    return os.path.join(os.path.expanduser("~"), "Desktop")


def entries():
    """What lies on the desktop: (name, is it a directory), sorted."""
    try:
        with os.scandir(directory()) as found:
            return sorted((e.name, e.is_dir()) for e in found if not e.name.startswith("."))
    except FileNotFoundError:
        return []


def tile(height):
    """A column of the wallpaper, 64 wide: a gradient under a weave, 32 bits a pixel."""
    rows = []
    for y in range(height):
        at = y / height
        row = bytearray()
        for x in range(64):
            weave = ((x + y) % 16 < 2) * 10 + ((x - y) % 16 < 2) * 6 + (x * 7 + y * 13) % 5
            red, green, blue = 28 + 70 * at + weave, 54 + 62 * at + weave, 104 + 44 * (1 - at) + weave
            row += bytes((int(blue), int(green), int(red), 0))
        rows.append(bytes(row))
    return rows


class Desktop:
    def __init__(self):
        self.display = display.Display()
        self.screen = self.display.screen()
        width, height = self.screen.width_in_pixels, self.screen.height_in_pixels
        root = self.screen.root
        wallpaper = root.create_pixmap(64, height, self.screen.root_depth)
        gc = wallpaper.create_gc()
        rows = tile(height)
        for y in range(0, height, 32):  # a request holds 256 KiB at most
            part = rows[y:y + 32]
            wallpaper.put_image(gc, 0, y, 64, len(part), X.ZPixmap, self.screen.root_depth, 0, b"".join(part))
        root.change_attributes(background_pixmap=wallpaper)
        root.clear_area()
        self.window = root.create_window(
            0, 0, width, height, 0, self.screen.root_depth, background_pixmap=wallpaper, event_mask=X.ExposureMask)
        atom = self.display.intern_atom
        self.window.set_wm_name("Desktop")
        self.window.set_wm_class("desktop", "Desktop")
        self.window.change_property(atom("_NET_WM_WINDOW_TYPE"), Xatom.ATOM, 32, [atom("_NET_WM_WINDOW_TYPE_DESKTOP")])
        self.window.change_property(atom("_NET_WM_PID"), Xatom.CARDINAL, 32, [os.getpid()])
        self.colours = {}
        self.font = self.display.open_font("fixed")
        self.gc = self.window.create_gc(font=self.font)
        self.shown = None
        self.window.map()

    def colour(self, name):
        if name not in self.colours:
            self.colours[name] = self.screen.default_colormap.alloc_named_color(name).pixel
        return self.colours[name]

    def fill(self, name, x, y, width, height):
        self.gc.change(foreground=self.colour(name))
        self.window.fill_rectangle(self.gc, x, y, width, height)

    def icon(self, x, y, name, is_directory):
        middle = x + CELL[0] // 2
        if is_directory:
            self.fill("#8a5a10", middle - 25, y + 9, 50, 40)
            self.fill("#e8b450", middle - 24, y + 10, 20, 8)
            self.fill("#f4c768", middle - 24, y + 16, 48, 32)
            self.fill("#ffe3a3", middle - 24, y + 16, 48, 3)
        else:
            self.fill("#4a5568", middle - 19, y + 5, 38, 48)
            self.fill("#f7f7f2", middle - 18, y + 6, 36, 46)
            for line in range(5):
                self.fill("#9aa5b8", middle - 12, y + 14 + 7 * line, 24, 2)
        label = name if len(name) <= 17 else name[:16] + "\u2026"
        text = label.encode("latin-1", "replace")
        width = 6 * len(text)
        self.fill("#1b2a41", middle - width // 2 - 4, y + 60, width + 8, 17)
        self.gc.change(foreground=self.colour("#ffffff"), background=self.colour("#1b2a41"))
        self.window.image_text(self.gc, middle - width // 2, y + 73, text)

    def draw(self):
        found = entries()
        self.window.clear_area()
        rows = max(1, (self.screen.height_in_pixels - 2 * MARGIN) // CELL[1])
        for i, (name, is_directory) in enumerate(found):
            self.icon(MARGIN + i // rows * CELL[0], MARGIN + i % rows * CELL[1], name, is_directory)
        self.display.sync()  # an answer of the X server: it has drawn all of it
        self.shown = found

    def run(self, ready):
        exposed = False
        while True:
            dirty = False
            while self.display.pending_events():
                event = self.display.next_event()
                if event.type == X.Expose and event.count == 0:
                    dirty = True
            if dirty or exposed and entries() != self.shown:
                self.draw()
                exposed = True
                with open(ready + ".new", "w", errors="surrogateescape") as out:
                    out.writelines(name + "\n" for name, _ in self.shown)
                os.rename(ready + ".new", ready)
            select.select([self.display], [], [], PERIOD if exposed else None)


if __name__ == "__main__":
    Desktop().run(sys.argv[1])
