"""A program of a machine's guest that looks for the host. Its kernel is the guest's own, so what is
tried is what leads out of the machine. Prints one JSON object: for each attempt what came of it,
"refused: why" or "done: what"."""
import ctypes, json, os, socket, stat, sys

args = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
attempts = {}


def attempt(f):
    attempts[f.__name__.replace("_", " ")] = f
    return f


def mount(source, fstype, data):
    if libc.mount(source.encode(), b"/mnt", fstype.encode(), ctypes.c_ulong(0), data.encode()):
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))
    libc.umount2(b"/mnt", 2)
    return source + " as " + fstype


def connected(family, address, kind=socket.SOCK_STREAM):
    s = socket.socket(family, kind)
    s.settimeout(0.5)
    try:
        s.connect(address)
        return "connected to %s" % (address,)
    finally:
        s.close()


def each(calls):
    last = OSError("nothing to try")
    for f in calls:
        try:
            return f()
        except OSError as e:
            last = e
    raise last


@attempt
def socket_of_the_host(): return connected(socket.AF_UNIX, "\0" + args["socket"])
@attempt
def address_of_the_host(): return each([lambda at=at: connected(socket.AF_INET, (at, args["port"])) for at in args["addresses"]])
@attempt
def other_end_of_the_link():
    # Also what user networking has there: a gateway, a name server, a file server.
    return each([lambda to=to: connected(socket.AF_INET, to)
                 for to in (("10.0.2.2", args["port"]), ("10.0.2.2", 22), ("10.0.2.2", 445), ("10.0.2.3", 53), ("10.0.2.4", 139))])
@attempt
def packet_to_the_world():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(1)
    for at in ("10.0.2.2", "10.0.2.3", "192.0.2.1"):
        try:
            s.sendto(b"\0\1\1\0\0\1\0\0\0\0\0\0\1a\0\0\1\0\1", (at, 53))
            return "an answer of %r" % (s.recvfrom(512),)
        except OSError as e:
            last = e
    raise last
@attempt
def channel_to_the_hypervisor(): return each([lambda p=p: connected(socket.AF_VSOCK, (2, p)) for p in (22, 1024, args["port"])])
@attempt
def shared_folder():
    return each([lambda tag=tag, fs=fs, data=data: mount(tag, fs, data)
                 for tag in ("host0", "hostshare", "share", "drums", "/") for fs, data in (("9p", "trans=virtio"), ("virtiofs", ""))])
@attempt
def disk_of_the_host():
    mine = {"vda"}
    found = [d for d in os.listdir("/sys/block") if not d.startswith(("loop", "ram", "zram", "fd", "sr")) and d not in mine]
    if found:
        return found
    raise OSError("there is %s and no other" % sorted(mine))
@attempt
def beyond_the_end_of_the_disk():
    with open("/sys/block/vda/dev") as f:
        number = os.makedev(*map(int, f.read().split(":")))
    os.mknod("/tmp/drums-vda", stat.S_IFBLK | 0o600, number)
    fd = os.open("/tmp/drums-vda", os.O_RDONLY)
    try:
        end = os.lseek(fd, 0, os.SEEK_END)
        os.lseek(fd, end + 4096, os.SEEK_SET)
        got = os.read(fd, 4096)
    finally:
        os.close(fd)
        os.unlink("/tmp/drums-vda")
    if got:
        return "%d bytes" % len(got)
    raise OSError("nothing is there")
@attempt
def port_of_the_hypervisor():
    found = os.listdir("/dev/virtio-ports") if os.path.isdir("/dev/virtio-ports") else []
    if found:
        return found
    raise OSError("none")
@attempt
def path_of_the_host_in_the_firmware():
    places = [p for p in ("/proc/cmdline", "/proc/bootconfig") if os.path.exists(p)]
    for top in ("/sys/firmware", "/sys/class/dmi/id"):
        for folder, _, files in os.walk(top):
            places += [os.path.join(folder, f) for f in files]
    for p in places:
        try:
            with open(p, "rb") as f:
                text = f.read(1 << 20)
        except OSError:
            continue
        for secret in args["secrets"]:
            if secret.encode() in text:
                return "%s has %s" % (p, secret)
    raise OSError("%d files have none" % len(places))
@attempt
def memory_that_is_shared():
    found = [d for d in os.listdir("/sys/bus/pci/devices")
             if open("/sys/bus/pci/devices/%s/vendor" % d).read().strip() + open("/sys/bus/pci/devices/%s/device" % d).read().strip() == "0x1af40x1110"]
    if found:
        return found
    raise OSError("no ivshmem")


def everything():
    said = {}
    for name, f in attempts.items():
        try:
            said[name] = "done: " + str(f())
        except (OSError, ValueError, AttributeError) as e:
            said[name] = "refused: " + str(e)
    return said


def as_user(uid):
    """What comes of it where user uid tries, in a process of its own."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        if uid:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            libc.prctl(4, 1, 0, 0, 0)  # dumpable: else /proc/self is root's
        os.write(w, json.dumps(everything()).encode())
        os._exit(0)
    os.close(w)
    with os.fdopen(r) as text:
        said = json.loads(text.read())
    os.waitpid(pid, 0)
    return said


print(json.dumps({str(uid): as_user(uid) for uid in (0, 65534)}))
