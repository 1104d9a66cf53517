#!/usr/bin/python3
"""An account book in a terminal: a desktop program that keeps a read transaction of SQLite open.

  book.py show READY      show the book; READY is made once it is on the screen
  book.py add WHAT CENTS  add an entry, from another process
  book.py check WHAT CENTS
      0  the entry is there, once
      4  it is not there
      3  no answer: the program is dead, its snapshot is broken, or a lock of it is gone; stderr says which

The program shows the book as it was when it was opened, and reads it anew several times a second. What
it sees is SQLite's snapshot: half of the entries lie in the file and half in the WAL, and POSIX locks on the
-shm, which SQLite also maps, keep a writer from moving or overwriting them. "add" tries both. A program that
has lost its locks (EXP-009) loses its snapshot here, in front of everybody.
"""

import sys

sys.dont_write_bytecode = True  # nothing but the book's own files may change in the slot

import json
import os
import select
import socket
import sqlite3

STATE = "/var/lib/book"
DATABASE = os.path.join(STATE, "book.db")
SOCKET = "/run/book.socket"
PERIOD = 0.25
FIRST = [(n, "entry %02d" % n, 1000 + 37 * n) for n in range(1, 17)]
FILLER = 900  # bytes beside each entry, so that a page holds only a few


def connect():
    connection = sqlite3.connect(DATABASE, timeout=5, isolation_level=None)
    connection.execute("PRAGMA wal_autocheckpoint=0")
    connection.execute("PRAGMA synchronous=OFF")
    return connection


def insert(connection, rows):
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany("INSERT INTO entries(number, what, cents, filler) VALUES(?, ?, ?, zeroblob(%d))" % FILLER, rows)
    connection.execute("COMMIT")


def read(connection):
    connection.execute("PRAGMA shrink_memory")
    return connection.execute("SELECT number, what, cents FROM entries ORDER BY number").fetchall()


def make():
    """A book whose second half lies in the WAL, in an open read transaction."""
    os.makedirs(STATE, exist_ok=True)
    connection = connect()
    if connection.execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
        sys.exit("no WAL")
    connection.execute("PRAGMA cache_size=1")  # pages are read again, not remembered
    connection.execute("CREATE TABLE entries(number INTEGER PRIMARY KEY, what TEXT NOT NULL, cents INTEGER NOT NULL, filler BLOB NOT NULL)")
    connection.execute("CREATE TABLE held(busy INTEGER NOT NULL)")
    insert(connection, FIRST[:8])
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    insert(connection, FIRST[8:])
    connection.execute("BEGIN")
    return connection


def draw(rows, trouble):
    total = sum(cents for _, _, cents in rows)
    lines = ["\033[2J\033[H\033[?25l", "\033[1;44;97m  Account book%37s\033[0m" % "", ""]
    lines += ["  %3d  %-24s %14.2f" % (number, what, cents / 100) for number, what, cents in rows]
    lines += ["       " + "-" * 39, "       %-24s %14.2f" % ("%d entries" % len(rows), total / 100), ""]
    lines += ["\033[1;31m  %s\033[0m" % trouble if trouble else "\033[32m  as it was when it was opened\033[0m"]
    sys.stdout.write("\r\n".join(lines))
    sys.stdout.flush()


def show(ready):
    connection = make()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(SOCKET)
    listener.listen(8)
    shown = None
    while True:
        rows, trouble = FIRST, ""
        try:
            rows = read(connection)
            if rows != FIRST:
                trouble = "the snapshot changed: %d entries" % len(rows)
        except sqlite3.Error as error:
            trouble = "the snapshot cannot be read: %s" % error
        if (rows, trouble) != shown:
            draw(rows, trouble)
            if shown is None:
                with open(ready, "x"):
                    pass
            shown = (rows, trouble)
        if select.select([listener], [], [], PERIOD)[0]:
            client, _ = listener.accept()
            with client:
                client.settimeout(5)
                try:
                    client.sendall(json.dumps({"trouble": trouble, "entries": len(rows)}).encode())
                except OSError:
                    pass  # the one who asked is gone


def add(what, cents):
    """Adds, then tries to take the snapshot away: moves the WAL into the file and writes over what was there."""
    connection = connect()
    number = connection.execute("SELECT max(number) FROM entries").fetchone()[0] + 1
    insert(connection, [(number, what, cents)])
    connection.execute("PRAGMA busy_timeout=0")
    busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    connection.execute("INSERT INTO held VALUES(?)", (busy,))
    for step in (1, -1):  # every page changes twice and ends as it was
        connection.execute("UPDATE entries SET cents=cents+?", (step,))
    connection.close()


def ask():
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.settimeout(10)
        s.connect(SOCKET)
        said = b""
        while part := s.recv(4096):
            said += part
    return json.loads(said)


def check(what, cents):
    """1 if the entry is there, 0 if not; a broken world raises."""
    connection = connect()
    found = [row[1:] for row in read(connection) if row not in FIRST]
    held = [row[0] for row in connection.execute("SELECT busy FROM held")]
    connection.close()
    answer = ask()
    if answer["trouble"]:
        raise RuntimeError("the program says: " + answer["trouble"])
    if found == [] and held == []:
        return 0
    if found != [(what, cents)]:
        raise RuntimeError("other entries than the one: %r" % (found,))
    if held != [1]:
        raise RuntimeError("SQLite did not hold the checkpoint off: busy %r" % (held,))
    return 1


def main(command, *arguments):
    if command == "show":
        show(*arguments)
    elif command == "add":
        add(arguments[0], int(arguments[1]))
    elif command == "check":
        try:
            score = check(arguments[0], int(arguments[1]))
        except Exception as error:
            sys.stderr.write("no score: %s: %s\n" % (type(error).__name__, error))
            sys.exit(3)
        sys.exit(0 if score else 4)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
