# A server of lazy pages for the reproducers: it fills a page when it is touched, from CRIU's images, and no other.
#   lazy.py IMAGES WORK      makes WORK/listening when CRIU may come
import ctypes, os, select, socket, struct, sys

images, work = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
PAGE = 4096
libc = ctypes.CDLL(None, use_errno=True)


def fields(message):  # of a protobuf message: number -> value; lengths are not met here
    at, found = 0, {}

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        tag = varint()
        found[tag >> 3] = varint()
    return found


def pages(pid):  # address -> content
    data = open("%s/pagemap-%d.img" % (images, pid), "rb").read()
    at, messages = 8, []
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at)
        messages.append(fields(data[at + 4 : at + 4 + size]))
        at += 4 + size
    content = open("%s/pages-%d.img" % (images, messages[0][1]), "rb").read()
    found, offset = {}, 0
    for m in messages[1:]:
        if m.get(4, 0) & 4:
            for i in range(m.get(5) or m[2]):
                found[m[1] + i * PAGE] = content[offset : offset + PAGE]
                offset += PAGE
    return found


def fill(fd, at, data):
    page = ctypes.create_string_buffer(data, PAGE)
    call, name = ctypes.create_string_buffer(struct.pack("<QQQQQ", at, ctypes.addressof(page), PAGE, 0, 0)), 0xC028AA03
    if data is ZERO:
        call, name = ctypes.create_string_buffer(struct.pack("<QQQQ", at, PAGE, 0, 0)), 0xC020AA04
    libc.ioctl(fd, ctypes.c_ulong(name), call)


ZERO = bytes(PAGE)
os.chdir(work)
s = socket.socket(socket.AF_UNIX)
s.bind("lazy-pages.socket")
s.listen(1)
open("listening", "w").close()
criu, _ = s.accept()
tasks = {}
while True:
    for fd in select.select(list(tasks) + ([criu] if criu else []), [], [])[0]:
        if fd is criu:
            word = criu.recv(4)
            pid = int.from_bytes(word, "little", signed=True) if word else 0x52535446
            if pid == 0x52535446:
                criu = None
            elif pid > 0:
                tasks[socket.recv_fds(criu, 1, 1)[1][0]] = pages(pid)
            continue
        try:
            message = os.read(fd, 32)
        except OSError:
            continue
        if message[0] == 0x12:
            at = struct.unpack_from("<Q", message, 16)[0] & -PAGE
            fill(fd, at, tasks[fd].get(at, ZERO))
