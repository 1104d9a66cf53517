#!/usr/bin/python3
"""Scores the writer's work, and vouches for the world that it was done in.

  0  score 1: the new rows are there, SQLite held the checkpoint off, the reader still sees its old snapshot
  4  score 0: nothing was written yet, the reader sees its snapshot
  3  no score: the reader is dead, a lock is gone, the snapshot is broken, or the writer stopped half way;
     stderr says which

A verifier must not turn a broken world into a 0: whatever else happens, imports included, ends in 3, and an
interpreter that cannot start ends in 1, which is no score either.
"""

import sys

sys.dont_write_bytecode = True  # nothing but the locks' own files may change in the slot


class Broken(Exception):
    """What makes a score impossible."""


def locks(world):
    """Each lock is held, by the reader or by its child. The kernel is asked, not the reader."""
    for name, lock in [
        ("plain file", world.PLAIN_LOCK),
        ("mapped file", world.MAPPED_LOCK),
        ("tail of the child's file", world.TAIL_LOCK),
        ("database", world.DATABASE_LOCK),
        ("switch of the database's -shm", world.SWITCH_LOCK),
        ("read mark of the database's -shm", world.MARKS_LOCK),
    ]:
        held = world.holder(lock)
        if held is None:
            yield "nobody holds the lock on the %s (%s, byte %d)" % (name, lock[0], lock[2])
        elif held[1] != lock[1]:
            yield "the lock on the %s (%s) is of another kind: %s" % (name, lock[0], held)


def snapshot(world):
    """The reader lives and sees what it saw at first."""
    answer = world.ask()
    if "error" in answer:
        yield "the reader cannot read its snapshot: %s" % answer["error"]
        return
    have = {key: answer[key] for key in ("count", "checksum")}
    want = world.summary(world.old_rows())
    if have != want:
        yield "the reader's snapshot changed: %s, wanted %s" % (have, want)


def score(world):
    reasons = [*snapshot(world), *locks(world)]
    if reasons:
        raise Broken("; ".join(reasons))
    connection = world.connect()
    try:
        rows = world.summary(connection.execute("SELECT number, text FROM rows ORDER BY number"))
        outcome = connection.execute("SELECT busy, log, checkpointed FROM outcome").fetchall()
    finally:
        connection.close()
    reasons = list(snapshot(world))  # once more, now that a fresh connection has been there
    if reasons:
        raise Broken("; ".join(reasons))
    if rows == world.summary(world.old_rows()) and not outcome:
        return 0
    if rows != world.summary(world.new_rows()):
        raise Broken("the rows are neither the old nor the new ones: %s" % rows)
    if len(outcome) != 1:
        raise Broken("the writer left %d outcomes of its checkpoint" % len(outcome))
    if outcome[0][0] != 1:
        raise Broken("SQLite did not hold the checkpoint off: busy=%d log=%d checkpointed=%d" % outcome[0])
    return 1


def main():
    try:
        import world

        result = score(world)
        print("score %d" % result, flush=True)
    except Exception as error:
        text = str(error) if isinstance(error, Broken) else "%s: %s" % (type(error).__name__, error)
        sys.stderr.write("no score: %s\n" % text)
        sys.exit(3)
    sys.exit(0 if result == 1 else 4)


if __name__ == "__main__":
    main()
