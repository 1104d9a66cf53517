#!/usr/bin/python3
"""What the page of the gnome image has in its memory, over Chromium's DevTools protocol.

  page.py mark FILE    writes the page's ticket and its count to FILE
  page.py check [FILE] 0: the page says that it is done; 4: that it is open; 3: no answer, or the page is not the one
                       of FILE: its ticket is another, its cookie is not its ticket, or its count did not go on
  page.py context      opens the page in a new browser context, whose cookies and storage are its own, and closes the old
  page.py which        prints the page's context and its ticket
"""

import json
import sys
import time

import devtools
from devtools import Broken, Page

TOLD = """({ticket, count, cookies: document.cookie, state: document.getElementById("state").textContent, url: location.href})"""
LIMIT = 30  # seconds for the new page


def told():
    with Page() as page:
        page.value(devtools.ALIVE)
        said = page.value(TOLD)
    if page.title != devtools.TITLE or "ticket=" + said["ticket"] not in said["cookies"].split("; "):
        raise Broken("the page %r has not its cookie: %r" % (page.title, said))
    return said


def mark(path):
    with open(path, "w") as out:
        json.dump(told(), out)


def check(path=None):
    now = told()
    if path:
        with open(path) as kept:
            was = json.load(kept)
        if now["ticket"] != was["ticket"] or now["count"] <= was["count"]:
            raise Broken("the page is not the one that was: %r, then %r" % (was, now))
    if now["state"] not in ("open", "done"):
        raise Broken("another page: %r" % (now,))
    return 0 if now["state"] == "done" else 4


def browser():
    return devtools.Connection(devtools.get("/json/version")["webSocketDebuggerUrl"])


def targets(connection):
    return [t for t in connection.ask("Target.getTargets")["targetInfos"] if t["type"] == "page"]


def context():
    url = told()["url"]
    with browser() as b:
        old = targets(b)
        new = b.ask("Target.createBrowserContext")["browserContextId"]
        b.ask("Target.createTarget", url=url, browserContextId=new)
        for t in old:
            b.ask("Target.closeTarget", targetId=t["targetId"])
        end = time.monotonic() + LIMIT
        while [t["browserContextId"] for t in targets(b)] != [new]:
            if time.monotonic() > end:
                raise Broken("the old page is still there: %r" % (targets(b),))
            time.sleep(0.05)
    while True:  # until the new page has drawn a frame
        try:
            return told()
        except Broken:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def which():
    with browser() as b:
        (target,) = targets(b)
    print(target["browserContextId"], told()["ticket"])


def main(words):
    try:
        if words[:1] == ["check"]:
            return check(*words[1:])
        {"mark": mark, "context": context, "which": which}[words[0]](*words[1:])
        return 0
    except Exception as error:  # a broken world is no 0
        sys.stderr.write("%s: %s\n" % (type(error).__name__, error))
        return 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
