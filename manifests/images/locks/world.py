"""What reader, writer and checker agree on: where things lie, what the rows are, and how to ask the reader.

LOCKS_STATE and LOCKS_RUN move the folders, for tests outside of a slot.
"""

import fcntl
import hashlib
import json
import os
import socket
import sqlite3
import struct

STATE = os.environ.get("LOCKS_STATE", "/var/lib/locks")
RUN = os.environ.get("LOCKS_RUN", "/run/locks")
PLAIN = os.path.join(STATE, "plain")
MAPPED = os.path.join(STATE, "mapped")
TAIL = os.path.join(STATE, "tail")
DATABASE = os.path.join(STATE, "wal.db")
SHM = DATABASE + "-shm"
SOCKET = os.path.join(RUN, "reader.sock")
READY = os.path.join(RUN, "ready")

# The locks that the reader and its child hold: file, kind, first byte, length (0 is to the end of the file).
PLAIN_LOCK = (PLAIN, fcntl.F_RDLCK, 100, 100)
MAPPED_LOCK = (MAPPED, fcntl.F_RDLCK, 4096, 512)
TAIL_LOCK = (TAIL, fcntl.F_WRLCK, 64, 0)
# SQLite's own: the shared range of a database file, the dead man's switch of its -shm, and there
# the five read marks, of which a reader in a transaction holds one.
DATABASE_LOCK = (DATABASE, fcntl.F_RDLCK, 0x40000002, 510)
SWITCH_LOCK = (SHM, fcntl.F_RDLCK, 128, 1)
MARKS_LOCK = (SHM, fcntl.F_RDLCK, 123, 5)

BEFORE = 320  # rows of the snapshot
ADDED = 64  # rows that the writer adds


def row(number, generation):
    """One row's text: some 500 bytes, so that a page of the database holds only a few rows."""
    return hashlib.sha512(b"%d/%d" % (number, generation)).hexdigest() * 4


def old_rows():
    """What the snapshot holds: even rows as they lie in the database file, odd ones as they lie in the WAL."""
    return [(n, row(n, n % 2)) for n in range(BEFORE)]


def new_rows():
    """What is there once the writer is done."""
    return [(n, row(n, 2)) for n in range(BEFORE + ADDED)]


def summary(rows):
    """Count and checksum of rows."""
    digest = hashlib.sha256()
    count = 0
    for number, text in rows:
        digest.update(b"%d %s\n" % (number, text.encode()))
        count += 1
    return {"count": count, "checksum": digest.hexdigest()}


def connect():
    """A connection without Python's own transactions, and without waiting for locks."""
    connection = sqlite3.connect(DATABASE, timeout=0, isolation_level=None)
    connection.execute("PRAGMA wal_autocheckpoint=0")
    return connection


def ask(timeout=5.0):
    """Asks the reader to read its snapshot anew."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(SOCKET)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    return json.loads(answer)


def holder(lock):
    """The pid of a process whose lock conflicts with a write lock of this range, and its kind; None for nobody.

    Must not be called in a process that has the file open otherwise: closing drops that process's locks.
    """
    path, _, start, length = lock
    descriptor = os.open(path, os.O_RDWR)
    try:
        layout = "hhqqi4x"  # struct flock on 64 bits
        asked = struct.pack(layout, fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        kind, _, _, _, pid = struct.unpack(layout, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    finally:
        os.close(descriptor)
    return None if kind == fcntl.F_UNLCK else (pid, kind)
