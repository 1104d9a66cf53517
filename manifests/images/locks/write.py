#!/usr/bin/python3
"""Writes beside the reader, and does all that a lock of the reader's must withstand.

It changes every row and adds some, commits, asks SQLite to move the whole WAL into the database file
and to cut it off, writes down what SQLite said, and commits again. While the reader's locks hold, the
checkpoint stops at the reader's snapshot and the further commits go behind it. With a lost lock it
succeeds, and they overwrite the frames that the reader still reads.

Exit status 0: the rows are committed. Anything else: they are not, and stderr says why.
"""

import sys

sys.dont_write_bytecode = True  # nothing but the locks' own files may change in the slot

import sqlite3

import world


def write(connection, generation):
    rows = [(n, world.row(n, generation)) for n in range(world.BEFORE + world.ADDED)]
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany("INSERT INTO rows VALUES(?, ?) ON CONFLICT(number) DO UPDATE SET text=excluded.text", rows)
    connection.execute("COMMIT")


def main():
    connection = world.connect()
    connection.execute("PRAGMA synchronous=OFF")
    write(connection, 2)
    try:
        outcome = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise
        outcome = (1, -1, -1)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM outcome")
    connection.execute("INSERT INTO outcome VALUES(?, ?, ?)", outcome)
    connection.execute("COMMIT")
    # Back and forth, so that a WAL that was cut off grows over the frames of the snapshot with other content.
    write(connection, 3)
    write(connection, 2)
    seen = world.summary(connection.execute("SELECT number, text FROM rows ORDER BY number"))
    if seen != world.summary(world.new_rows()):
        sys.exit("the rows read back are not the ones written: %s" % seen)
    connection.close()
    print("%d rows written; checkpoint busy=%d log=%d checkpointed=%d" % (seen["count"], *outcome))


if __name__ == "__main__":
    main()
