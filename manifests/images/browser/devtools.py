#!/usr/bin/python3
"""Speaks Chromium's DevTools protocol to the page of the browser image.

  devtools.py ready   0: the page has its title, its counter runs on and a frame was drawn; 1: not (yet)
  devtools.py click   clicks on the page's button, and waits until the page says that it is done
  devtools.py check   0: the page says that it is done; 4: it is not; 3: no answer, stderr says why

The connection is closed, and seen closed by the browser, before the program ends: one that is open would
keep the slot from being dumped.
"""

import sys

sys.dont_write_bytecode = True  # nothing but the browser's own files may change in the slot

import base64
import json
import os
import socket
import struct

PORT = 9222
TITLE = "Running counter"
LIMIT = 20  # seconds for one answer

# Resolves once the counter has moved and a frame was drawn: a page that stands still never answers.
ALIVE = """new Promise(resolve => {
  const from = count;
  const look = () => count > from && document.visibilityState === "visible"
    ? resolve({title: document.title, count, from}) : requestAnimationFrame(look);
  requestAnimationFrame(look);
})"""
STATE = """({title: document.title, count, state: document.getElementById("state").textContent})"""
BUTTON = """(() => {
  const button = document.getElementById("done");
  button.scrollIntoView({block: "center"});
  const r = button.getBoundingClientRect();
  return {x: r.x + r.width / 2, y: r.y + r.height / 2};
})()"""
DONE = """new Promise(resolve => {
  const look = () => document.getElementById("state").textContent === "done" ? resolve(true) : requestAnimationFrame(look);
  look();
})"""


class Broken(Exception):
    """No answer that means anything."""


def connect():
    s = socket.create_connection(("127.0.0.1", PORT), timeout=LIMIT)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def closed(s):
    """Says that we send no more and reads until the other side has closed too."""
    try:
        s.shutdown(socket.SHUT_WR)
        while s.recv(4096):
            pass
    except OSError:
        pass
    s.close()


def get(path):
    """The body of an answer of the browser's HTTP server."""
    s = connect()
    try:
        s.sendall(("GET %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n\r\n" % (path, PORT)).encode())
        data, want = b"", None
        while want is None or len(data) < want:
            part = s.recv(65536)
            if not part:
                break
            data += part
            head, gap, _ = data.partition(b"\r\n\r\n")
            if gap and want is None:
                for line in head.split(b"\r\n")[1:]:
                    name, _, value = line.partition(b":")
                    if name.lower() == b"content-length":
                        want = len(head) + 4 + int(value)
    finally:
        closed(s)
    head, _, body = data.partition(b"\r\n\r\n")
    if want is None or len(data) < want or b" 200 " not in head.split(b"\r\n")[0]:
        raise Broken("GET %s: %r" % (path, head[:200]))
    return json.loads(body)


class Connection:
    """A DevTools connection to what the browser's HTTP server gave the address of."""

    def __init__(self, url):
        path = "/" + url.split("/", 3)[3]
        self.socket, self.data, self.last = connect(), b"", 0
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(("GET %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                             "Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\n\r\n" % (path, PORT, key)).encode())
        while b"\r\n\r\n" not in self.data:
            self.more()
        head, _, self.data = self.data.partition(b"\r\n\r\n")
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise Broken("upgrade: %r" % head[:200])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.send(8, b"")
        except OSError:
            pass
        closed(self.socket)

    def more(self):
        part = self.socket.recv(65536)
        if not part:
            raise Broken("the browser closed the connection")
        self.data += part

    def take(self, n):
        while len(self.data) < n:
            self.more()
        part, self.data = self.data[:n], self.data[n:]
        return part

    def send(self, kind, payload):
        size = struct.pack("!B", 0x80 | len(payload)) if len(payload) < 126 else struct.pack("!BH", 0x80 | 126, len(payload))
        # A mask of zeros is one: what is sent is the payload itself (RFC 6455, 5.3).
        self.socket.sendall(struct.pack("!B", 0x80 | kind) + size + b"\0\0\0\0" + payload)

    def receive(self):
        """The next text message, whole."""
        message = b""
        while True:
            first, size = self.take(2)
            if size == 126:
                size, = struct.unpack("!H", self.take(2))
            elif size == 127:
                size, = struct.unpack("!Q", self.take(8))
            payload = self.take(size)
            kind = first & 15
            if kind == 8:
                raise Broken("the browser ended the conversation")
            if kind == 9:
                self.send(10, payload)
            elif kind in (0, 1):
                message += payload
                if first & 0x80:
                    return message

    def ask(self, method, **parameters):
        self.last += 1
        self.send(1, json.dumps({"id": self.last, "method": method, "params": parameters}).encode())
        while True:
            answer = json.loads(self.receive())
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise Broken("%s: %s" % (method, answer["error"]))
                return answer["result"]


class Page(Connection):
    """To the one page."""

    def __init__(self):
        pages = [t for t in get("/json/list") if t.get("type") == "page"]
        if len(pages) != 1:
            raise Broken("%d pages, not one" % len(pages))
        self.title = pages[0]["title"]
        super().__init__(pages[0]["webSocketDebuggerUrl"])

    def value(self, expression):
        result = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise Broken(str(result["exceptionDetails"].get("exception", result["exceptionDetails"])))
        return result["result"].get("value")


def ready():
    with Page() as page:
        told = page.value(ALIVE)
        if page.title != TITLE or told["title"] != TITLE:
            raise Broken("the title is %r, and %r to the browser" % (told["title"], page.title))


def click():
    with Page() as page:
        at = page.value(BUTTON)
        for kind in ("mousePressed", "mouseReleased"):
            page.ask("Input.dispatchMouseEvent", type=kind, x=at["x"], y=at["y"], button="left", clickCount=1)
        page.value(DONE)


def check():
    with Page() as page:
        page.value(ALIVE)
        told = page.value(STATE)
    if told["title"] != TITLE or told["state"] not in ("open", "done"):
        raise Broken("another page: %r" % (told,))
    return 0 if told["state"] == "done" else 4


def main(argv):
    if argv[1:] not in (["ready"], ["click"], ["check"]):
        sys.exit(__doc__)
    try:
        if argv[1] == "check":
            return check()
        (ready if argv[1] == "ready" else click)()
        return 0
    except Exception as error:  # a broken world is no 0
        sys.stderr.write("%s: %s\n" % (type(error).__name__, error))
        return 3 if argv[1] == "check" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv))
