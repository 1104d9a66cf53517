#!/usr/bin/python3
"""A service that holds every kind of lock that a checkpoint must bring back, and a snapshot that depends on them.

It holds at the same time
  - a POSIX read lock on a plain file,
  - a POSIX read lock on a file that it also maps,
  - an open read transaction of SQLite in WAL mode, whose -shm SQLite maps and locks,
and a child of its own holds
  - a POSIX write lock from byte 64 to the end of a file that the child maps.

On a unix socket it answers each connection with what its transaction sees, read anew, and a count of
the questions so far. If the child dies, so does the service.
"""

import sys

sys.dont_write_bytecode = True  # nothing but the locks' own files may change in the slot

import argparse
import fcntl
import glob
import json
import mmap
import os
import signal
import socket

import world


def lock(descriptor, wanted):
    _, kind, start, length = wanted
    operation = fcntl.LOCK_SH if kind == fcntl.F_RDLCK else fcntl.LOCK_EX
    fcntl.lockf(descriptor, operation | fcntl.LOCK_NB, length, start, os.SEEK_SET)


def lose(path):
    """Drops all of this process's POSIX locks on a file the way EXP-009 does: by closing some descriptor of it."""
    os.close(os.open(path, os.O_RDWR))


def create(path, size):
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    os.ftruncate(descriptor, size)
    return descriptor


def mapped(path, size):
    """A file with a shared mapping. Map first, then lock: a mapping that goes takes the locks with it."""
    descriptor = create(path, size)
    memory = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    memory[0] = 1
    return descriptor, memory


def hold_tail(parent, held, drop):
    """The child: locks its file, says so, and lives as long as its parent."""
    descriptor, memory = mapped(world.TAIL, 8192)
    lock(descriptor, world.TAIL_LOCK)
    if drop:
        lose(world.TAIL)
    os.write(held, b"+")
    os.close(held)
    os.read(parent, 1)  # end of file when the parent is gone
    memory.close()


def start_child(drop):
    """Forks the child before anything else is open, and returns once its lock is held."""
    parent, alive = os.pipe()
    held, say = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(alive)
            os.close(held)
            hold_tail(parent, say, drop)
        finally:
            os._exit(1)
    os.close(parent)
    os.close(say)
    if os.read(held, 1) != b"+":
        sys.exit("the child ended before it held its lock")
    os.close(held)
    return child, alive


def open_snapshot():
    """Fills the database and opens the transaction: half of the rows lie in the file, half in the WAL."""
    connection = world.connect()
    mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        sys.exit("SQLite's journal mode is %s, wanted wal" % mode)
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("PRAGMA cache_size=1")  # pages are read again, not remembered
    connection.execute("CREATE TABLE rows(number INTEGER PRIMARY KEY, text TEXT NOT NULL)")
    connection.execute("CREATE TABLE outcome(busy INTEGER NOT NULL, log INTEGER NOT NULL, checkpointed INTEGER NOT NULL)")
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO rows VALUES(?, ?)", [(n, world.row(n, 0)) for n in range(world.BEFORE)])
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    connection.execute("BEGIN")
    connection.executemany("UPDATE rows SET text=? WHERE number=?", [(world.row(n, 1), n) for n in range(1, world.BEFORE, 2)])
    connection.execute("COMMIT")
    connection.execute("BEGIN")
    seen = read(connection)
    if seen != world.summary(world.old_rows()):
        sys.exit("the snapshot is not what was written: %s" % seen)
    return connection


def read(connection):
    connection.execute("PRAGMA shrink_memory")
    return world.summary(connection.execute("SELECT number, text FROM rows ORDER BY number"))


def serve(connection, listener):
    questions = 0
    while True:
        client, _ = listener.accept()
        questions += 1
        try:
            answer = read(connection)
        except Exception as error:  # a damaged snapshot is an answer, and the checker's to judge
            answer = {"error": "%s: %s" % (type(error).__name__, error)}
        answer.update(pid=os.getpid(), questions=questions)
        try:
            with client:
                client.settimeout(5)
                client.sendall(json.dumps(answer).encode())
        except OSError:
            pass  # the one who asked is gone


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drop-mapped-locks", action="store_true", help="plant the fault of EXP-009: lose the locks on mapped files")
    drop = parser.parse_args().drop_mapped_locks

    os.makedirs(world.STATE, exist_ok=True)
    os.makedirs(world.RUN, exist_ok=True)
    for old in [world.SOCKET, world.READY, *glob.glob(glob.escape(world.DATABASE) + "*")]:
        if os.path.exists(old):
            os.unlink(old)

    child, alive = start_child(drop)

    def watch(*_):
        # SIGCHLD also says that a child was stopped or goes on, which a restore does to every task.
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            sys.exit("the child that holds a lock has ended")

    signal.signal(signal.SIGCHLD, watch)
    watch()
    plain = create(world.PLAIN, 4096)
    lock(plain, world.PLAIN_LOCK)
    both, memory = mapped(world.MAPPED, 8192)
    lock(both, world.MAPPED_LOCK)
    connection = open_snapshot()
    if drop:
        lose(world.MAPPED)
        lose(world.SHM)

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(world.SOCKET)
    listener.listen(16)
    with open(world.READY, "w"):
        pass
    serve(connection, listener)


if __name__ == "__main__":
    main()
