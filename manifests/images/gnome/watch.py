#!/usr/bin/python3
"""Ends when a name on the session bus has lost its owner.

A session manager hides the death of what it started: the shell that it brings back,
or the page with its apology, is not the desktop that was. guestd watches this
program, and its end makes the slot failed.

  watch.py NAME READY    makes the file READY once NAME has an owner
"""

import sys

from gi.repository import Gio, GLib


def main(name, ready):
    loop = GLib.MainLoop()
    owners = []

    def appeared(_connection, _name, owner):
        owners.append(owner)
        open(ready, "w").close()

    def vanished(connection, _name):
        if owners or connection is None:  # before the first owner there is nothing to lose but the bus
            loop.quit()

    Gio.bus_watch_name(Gio.BusType.SESSION, name, Gio.BusNameWatcherFlags.NONE, appeared, vanished)
    loop.run()
    sys.exit(name + (" has lost its owner" if owners else ": there is no session bus"))


if __name__ == "__main__":
    main(*sys.argv[1:])
