# A task whose memory comes back while it runs: it does to its mappings whatever a program may, and compares each page
# that it touches with what it must be.
#   stress.py SOCKET SEED ROUNDS REGIONS PAGES
# Over the socket it sends its userfaultfd and, as JSON, its regions; pages of region r are numbered from r*PAGES. It
# begins when it is answered. Exit status 0: every page was right.
import ctypes, json, mmap, os, platform, random, socket, struct, sys, threading

PAGE = 4096
sock = socket.socket(fileno=int(sys.argv[1]))
seed, rounds, regions, pages = map(int, sys.argv[2:6])
rnd = random.Random(seed)
libc = ctypes.CDLL(None, use_errno=True)
for name in "mmap", "mremap", "sbrk", "memcpy":
    getattr(libc, name).restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
for name in "munmap", "mlock", "munlock":
    getattr(libc, name).argtypes = [ctypes.c_void_p, ctypes.c_size_t]
for name in "madvise", "mprotect":
    getattr(libc, name).argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
libc.sbrk.argtypes = [ctypes.c_long]
NONE, RW, PRIVATE, MAYMOVE, FIXED, DONTNEED = 0, 3, 0x22, 1, 2, 4


def die(text):
    sys.stderr.write("seed %d: %s\n" % (seed, text))
    sys.stderr.flush()
    os._exit(1)


def check(result, what):
    if result in (-1, ctypes.c_void_p(-1).value):
        die("%s: %s" % (what, os.strerror(ctypes.get_errno())))
    return result


def anonymous(n, prot=RW):
    return check(libc.mmap(None, n * PAGE, prot, PRIVATE, -1, 0), "mmap")


def image(number):  # of a page, as the test has it in its file
    return struct.pack("<Q", number + 1) * (PAGE // 8)


ZERO = bytes(PAGE)
model = {}  # address of a page -> what it must hold
buffers = threading.local()


def look(at):
    if not hasattr(buffers, "page"):
        buffers.page = ctypes.create_string_buffer(PAGE)
    libc.memcpy(buffers.page, at, PAGE)  # other threads run meanwhile
    if buffers.page.raw != model[at]:
        want, have = struct.unpack("<Q", model[at][:8])[0], struct.unpack("<Q", buffers.page.raw[:8])[0]
        die("page %#x begins with %#x and must with %#x" % (at, have, want))


def write(at):
    data = struct.pack("<Q", rnd.getrandbits(63)) * (PAGE // 8)
    libc.memcpy(at, data, PAGE)
    model[at] = data


def some(n):  # a run of up to n pages that are mapped
    at = rnd.choice(list(model))
    run = [at]
    while len(run) < n and run[-1] + PAGE in model:
        run.append(run[-1] + PAGE)
    return run


def dontneed(run):
    check(libc.madvise(run[0], len(run) * PAGE, DONTNEED), "madvise")
    for at in run:
        model[at] = ZERO


def unmap(run):
    check(libc.munmap(run[0], len(run) * PAGE), "munmap")
    for at in run:
        del model[at]


def one(run):  # what of a run lies in one mapping: the kernel moves no more at once
    for line in open("/proc/self/maps"):
        start, end = (int(x, 16) for x in line.split()[0].split("-"))
        if start <= run[0] < end:
            return [at for at in run if at < end]


def move(run, grow):
    run = one(run)
    grow = max(grow, 1 - len(run))
    new = len(run) + grow
    room = anonymous(max(new, 1) + 1, NONE)
    to = check(libc.mremap(run[0], len(run) * PAGE, new * PAGE, MAYMOVE | FIXED, room), "mremap")
    held = [model.pop(at) for at in run][:new]
    for i in range(new):
        model[to + i * PAGE] = held[i] if i < len(held) else ZERO


def protect(run):
    check(libc.mprotect(run[0], len(run) * PAGE, NONE), "mprotect")
    check(libc.mprotect(run[0], len(run) * PAGE, RW), "mprotect")


def lock(run):
    check(libc.mlock(run[0], len(run) * PAGE), "mlock")
    check(libc.munlock(run[0], len(run) * PAGE), "munlock")


def grow_break():
    at = check(libc.sbrk(PAGE), "sbrk")
    libc.memcpy(at, b"x" * PAGE, PAGE)
    check(libc.sbrk(-PAGE), "sbrk")


def together():
    pick = rnd.sample(list(model), min(len(model), 48))
    gone = some(4)
    parts = [[at for at in pick[i::3] if at not in gone] for i in range(3)]
    threads = [threading.Thread(target=lambda p=p: [look(at) for at in p]) for p in parts]
    for t in threads:
        t.start()
    dontneed(gone)
    for t in threads:
        t.join()
    for at in gone:
        look(at)


def fork(depth):
    pid = os.fork()
    if pid == 0:
        rnd.seed(rnd.getrandbits(32) + depth)
        for _ in range(20):
            act(depth + 1)
        for at in rnd.sample(list(model), min(len(model), 64)):
            look(at)
        os._exit(0)
    for at in some(8):  # while the child runs
        write(at)
    if os.waitpid(pid, 0)[1] != 0:
        die("a child found a page that was not right")


def act(depth):
    if len(model) < 64:
        return
    n = rnd.random()
    if n < 0.50:
        look(rnd.choice(list(model)))
    elif n < 0.60:
        write(rnd.choice(list(model)))
    elif n < 0.66:
        dontneed(some(rnd.randint(1, 8)))
    elif n < 0.68:
        unmap(some(rnd.randint(1, 3)))
    elif n < 0.76:
        move(some(rnd.randint(1, 12)), 0)
    elif n < 0.78:
        move(some(rnd.randint(1, 6)), rnd.randint(1, 3))
    elif n < 0.80:
        move(some(rnd.randint(3, 8)), -1)
    elif n < 0.85:
        protect(some(rnd.randint(1, 8)))
    elif n < 0.89:
        lock(some(rnd.randint(1, 4)))
    elif n < 0.92:
        grow_break()
    elif n < 0.97:
        together()
    elif depth < 2:
        fork(depth)


nr = {"x86_64": 323, "aarch64": 282}[platform.machine()]
fd = check(libc.syscall(nr, os.O_CLOEXEC | os.O_NONBLOCK), "userfaultfd")
EVENTS = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6  # fork, remap, remove, unmap
api = ctypes.create_string_buffer(struct.pack("<QQQ", 0xAA, EVENTS, 0))
check(libc.ioctl(fd, ctypes.c_ulong(0xC018AA3F), api), "UFFDIO_API")
starts = []
for r in range(regions):
    at = anonymous(pages)
    anonymous(1, NONE)  # no two regions are one mapping
    arg = ctypes.create_string_buffer(struct.pack("<QQQQ", at, pages * PAGE, 1, 0))
    check(libc.ioctl(fd, ctypes.c_ulong(0xC020AA00), arg), "UFFDIO_REGISTER")
    starts.append(at)
    for i in range(pages):
        # The last quarter of a region has no content.
        model[at + i * PAGE] = image(r * pages + i) if i < pages * 3 // 4 else ZERO
socket.send_fds(sock, [json.dumps(starts).encode()], [fd])
os.close(fd)
sock.recv(1)
for _ in range(rounds):
    act(0)
if "all" in sys.argv[6:]:
    for at in list(model):
        look(at)
sock.send(b"d")
sock.recv(1)  # stay until the test has looked
for at in list(model):
    look(at)
os._exit(0)
