"""A program of the guest's that looks for the host. Prints one JSON object: for
each attempt what came of it, "refused: why" or "done: what". It harms nobody where
an attempt succeeds: what it opens it does not write, what it calls has no effect."""
import ctypes, errno, json, os, platform, socket, stat, sys

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
numbers = {  # of system calls that libc has no function for: x86_64, aarch64
    "init_module": (175, 105), "delete_module": (176, 106), "kexec_load": (246, 104), "pivot_root": (155, 41),
    "bpf": (321, 280), "io_uring_setup": (425, 425), "userfaultfd": (323, 282), "keyctl": (250, 219),
    "perf_event_open": (298, 241), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    "fsopen": (430, 430), "open_tree": (428, 428), "iopl": (172, -1), "ioperm": (173, -1), "reboot": (169, 142),
    "pkey_alloc": (330, 289),
}
arch = {"x86_64": 0, "aarch64": 1}[platform.machine()]


def call(name, *args):
    number = numbers[name][arch]
    if number < 0:
        raise OSError(errno.ENOSYS, "not on this machine")
    got = libc.syscall(number, *[a if isinstance(a, (bytes, ctypes.Array)) else ctypes.c_long(a or 0) for a in args])
    return check(got)


def check(got):
    if got < 0:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))
    return got


def mount(source, target, fstype, flags=0, data=None):
    check(libc.mount(source.encode(), target.encode(), fstype.encode(), ctypes.c_ulong(flags), data and data.encode()))


def unshare(flags):
    check(libc.unshare(flags))


def opened(path, flags=os.O_WRONLY):
    os.close(os.open(path, flags | os.O_CLOEXEC))
    return "opened " + path


NEWNS, NEWUSER, NEWPID, NEWNET, NEWCGROUP = 0x20000, 0x10000000, 0x20000000, 0x40000000, 0x02000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_MOVE = 1, 32, 4096, 8192
attempts, wishes = {}, {}


def attempt(f, into=attempts):
    into[f.__name__.replace("_", " ")] = f
    return f


def child(f):
    """Runs f in a process of its own, and says what it said."""
    def run():
        r, w = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                text = "done: " + str(f() or "")
            except BaseException as e:
                text = "refused: " + str(e)
            os.write(w, text.encode()[:4000])
            os._exit(0)
        os.close(w)
        with os.fdopen(r) as said:
            text = said.read()
        os.waitpid(pid, 0)
        verdict, _, rest = text.partition(": ")
        if verdict != "done":
            raise OSError(rest or "it died")
        return rest
    run.__name__ = f.__name__
    return run


def as_root_of_a_namespace(more=0):
    """A user namespace of its own, where user 0 stays the user of the host that we are."""
    uid, gid = os.geteuid(), os.getegid()
    unshare(NEWUSER | more)
    for name, text in (("setgroups", "deny"), ("uid_map", "0 %d 1" % uid), ("gid_map", "0 %d 1" % gid)):
        with open("/proc/self/" + name, "w") as f:
            f.write(text)


def node(kind, major, minor):
    path = "/tmp/drums-node-%d" % os.geteuid()
    try:
        os.mknod(path, kind | 0o600, os.makedev(major, minor))
        return opened(path, os.O_RDONLY)
    finally:
        if os.path.lexists(path):
            os.unlink(path)


args = json.loads(sys.argv[1])
disk = tuple(args["disk"])
if args["uid"]:
    os.setgroups([])
    os.setresgid(args["uid"], args["uid"], args["uid"])
    os.setresuid(args["uid"], args["uid"], args["uid"])
    libc.prctl(4, 1, 0, 0, 0)  # dumpable: else /proc/self is root's, and no user namespace gets a map


def wish(f): return attempt(f, wishes)


@attempt
def node_of_the_hosts_disk(): return node(stat.S_IFBLK, *disk)
@attempt
def node_of_the_hosts_memory(): return node(stat.S_IFCHR, 1, 1)
@attempt
def node_of_the_kernels_log(): return node(stat.S_IFCHR, 1, 11)
@attempt
def node_of_loop_control(): return node(stat.S_IFCHR, 10, 237)
@attempt
def node_of_fuse(): return node(stat.S_IFCHR, 10, 229)
@attempt
@child
def node_in_a_user_namespace():
    as_root_of_a_namespace(NEWNS)
    mount("none", "/tmp", "tmpfs")
    os.mknod("/tmp/disk", stat.S_IFBLK | 0o600, os.makedev(*disk))
    return opened("/tmp/disk", os.O_RDONLY)
@attempt
def device_of_memory(): return opened("/dev/mem", os.O_RDONLY)
@attempt
def kernel_memory(): return opened("/proc/kcore", os.O_RDONLY)
@attempt
def kernel_log(): return opened("/proc/kmsg", os.O_RDONLY)


for path in args["readonly"]:
    def write(path=path):
        if not os.path.exists(path):
            raise OSError(errno.ENOENT, "this kernel has none")
        if not os.path.isdir(path):
            return opened(path)
        done = []
        for folder, _, files in os.walk(path):
            for f in files:
                at = os.path.join(folder, f)
                if os.lstat(at).st_mode & 0o222:
                    try:
                        done.append(opened(at))
                    except OSError:
                        pass
        if done:
            return done[:5]
        raise OSError("no file in it can be written")
    write.__name__ = "write to " + path
    attempt(write)


@attempt
def core_pattern(): return opened("/proc/sys/kernel/core_pattern")
@attempt
def sysfs_files():
    done = []
    for folder, _, files in os.walk("/sys"):
        for f in files:
            at = os.path.join(folder, f)
            try:
                if os.lstat(at).st_mode & 0o222 and not os.path.islink(at):
                    done.append(opened(at))
            except OSError:
                pass
    if done:
        return done[:5]
    raise OSError("none can be written")
@attempt
def mount_of_a_disk(): mount("/dev/vda", "/mnt", "ext4", MS_RDONLY)
@attempt
def mount_of_devtmpfs(): mount("none", "/mnt", "devtmpfs")
@attempt
def mount_of_proc(): mount("proc", "/mnt", "proc")
@attempt
def mount_of_cgroups(): mount("none", "/mnt", "cgroup2")
@attempt
def release_agent(): mount("none", "/mnt", "cgroup", 0, "memory")
@attempt
def write_again_in_proc_sys(): mount("none", "/proc/sys", "none", MS_REMOUNT | MS_BIND)
@attempt
def what_lies_below_proc_sys(): check(libc.umount2(b"/proc/sys", 2))
@attempt
def bind_of_a_folder(): mount("/root", "/mnt", "none", MS_BIND)
@attempt
def new_mount_interface(): call("fsopen", b"tmpfs", 0)
@attempt
def another_root(): call("pivot_root", b"/mnt", b"/mnt")
@attempt
@child
def fresh_proc_in_a_user_namespace():
    as_root_of_a_namespace(NEWNS | NEWPID)

    @child
    def inside():
        mount("proc", "/mnt", "proc")
        return opened("/mnt/sys/kernel/core_pattern")
    return inside()
@attempt
@child
def fresh_sysfs_in_a_user_namespace():
    as_root_of_a_namespace(NEWNS | NEWNET)
    mount("none", "/mnt", "sysfs")
    return "a sysfs that can be written"
@attempt
@child
def write_again_in_a_user_namespace():
    as_root_of_a_namespace(NEWNS)
    mount("none", "/proc/sys", "none", MS_REMOUNT | MS_BIND)
    return opened("/proc/sys/kernel/core_pattern")
@attempt
@child
def what_lies_below_in_a_user_namespace():
    as_root_of_a_namespace(NEWNS)
    check(libc.umount2(b"/proc/sys", 2))
    return opened("/proc/sys/kernel/core_pattern")
@attempt
@child
def root_below_in_a_user_namespace():
    as_root_of_a_namespace(NEWNS)
    check(libc.umount2(b"/", 2))
    return os.listdir("/")
@attempt
@child
def release_agent_in_a_user_namespace():
    as_root_of_a_namespace(NEWNS | NEWCGROUP)
    mount("none", "/mnt", "cgroup", 0, "memory")
    return opened("/mnt/release_agent")
@attempt
@child
def devices_in_a_user_namespace():
    as_root_of_a_namespace(NEWNS | NEWCGROUP)
    mount("none", "/mnt", "cgroup", 0, "devices")
    with open("/mnt/devices.allow", "w") as f:
        f.write("a")
    return "every device"
def unbounded(*files):
    """Writes that there is no bound, where that is possible."""
    for f in files:
        try:
            with open(f, "w") as to:
                to.write("-1" if f.endswith("bytes") else "max")
        except OSError:
            pass
@attempt
@child
def more_processes_in_a_user_namespace():
    as_root_of_a_namespace(NEWNS | NEWCGROUP)
    mount("none", "/mnt", "cgroup", 0, "pids")
    unbounded("/mnt/pids.max")
    children = []
    try:
        while len(children) <= args["pids"]:
            pid = os.fork()
            if pid == 0:
                import time
                time.sleep(60)
                os._exit(0)
            children.append(pid)
        return "%d processes" % len(children)
    finally:
        for pid in children:
            os.kill(pid, 9)
        for pid in children:
            os.waitpid(pid, 0)
@attempt
@child
def more_memory_in_a_user_namespace():
    as_root_of_a_namespace(NEWNS | NEWCGROUP)
    mount("none", "/mnt", "cgroup", 0, "memory")
    unbounded("/mnt/memory.memsw.limit_in_bytes", "/mnt/memory.limit_in_bytes")
    with open("/mnt/memory.stat") as stat:
        bound = dict(line.split() for line in stat)["hierarchical_memory_limit"]
    if int(bound) > args["memory"]:
        return "%s bytes" % bound
    raise OSError("still bounded at %s bytes" % bound)
@attempt
@child
def limits_of_v2_in_a_user_namespace():
    as_root_of_a_namespace(NEWNS | NEWCGROUP)
    mount("none", "/mnt", "cgroup2")
    for f in ("memory.max", "pids.max", "cpu.max"):
        if os.path.exists("/mnt/" + f):
            return opened("/mnt/" + f)
    raise OSError("it bounds nothing")
@attempt
def file_by_its_handle():
    # Inode 2 is the root of an ext4.
    class Handle(ctypes.Structure):
        _fields_ = [("size", ctypes.c_uint), ("type", ctypes.c_int), ("ino", ctypes.c_uint), ("gen", ctypes.c_uint)]
    h = Handle(8, 1, 2, 0)
    fd = os.open("/", os.O_RDONLY)
    got = libc.syscall(numbers["open_by_handle_at"][arch], fd, ctypes.byref(h), os.O_RDONLY)
    check(got)
@attempt
def signal_to_a_process_of_the_host(): os.kill(args["pid"], 0)
@attempt
def trace_of_a_process_of_the_host(): check(libc.ptrace(16, args["pid"], 0, 0))
@attempt
def processes_of_the_host():
    seen = [int(p) for p in os.listdir("/proc") if p.isdigit()]
    if args["pid"] in seen:
        return "pid %d is in sight" % args["pid"]
    raise OSError("%d processes are in sight, none of the host's" % len(seen))
@attempt
def descriptors_that_were_left_open():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            for fd in os.listdir("/proc/%s/fd" % pid):
                to = os.readlink("/proc/%s/fd/%s" % (pid, fd))
                if to.startswith("/") and not os.path.lexists(to.removesuffix(" (deleted)")) and "(deleted)" not in to:
                    found.append(to)
                if to.startswith(("mnt:", "net:", "pid:", "user:", "cgroup:")):
                    found.append(to)
        except OSError:
            pass
    if found:
        return found
    raise OSError("none")
@attempt
def namespaces_of_the_first_process():
    for n in ("mnt", "net", "pid", "ipc", "uts", "user", "cgroup"):
        fd = os.open("/proc/1/ns/" + n, os.O_RDONLY)
        try:
            check(libc.setns(fd, 0))
            if n != "cgroup" and n != "user":
                return "joined " + n
        except (OSError, ValueError) as e:
            last = e
        finally:
            os.close(fd)
    raise last
@attempt
def socket_of_the_host():
    s = socket.socket(socket.AF_UNIX)
    s.connect("\0" + args["socket"])
    return "connected"
@attempt
def address_of_the_host():
    for at in args["addresses"]:
        s = socket.socket()
        s.settimeout(1)
        try:
            s.connect((at, args["port"]))
            return "connected to " + at
        except (OSError, ValueError) as e:
            last = e
    raise last
@attempt
def load_a_module(): call("init_module", 0, 0, b"")
@attempt
def remove_a_module(): call("delete_module", b"drums_none", 0)
@attempt
def another_kernel(): call("kexec_load", 0, 0, 0, 0)
@attempt
def restart_the_machine(): call("reboot", 0xfee1dead, 672274793, 0, 0)  # no Ctrl-Alt-Del: no effect
@attempt
def ports_of_the_processor(): call("iopl", 3)
@attempt
def one_port_of_the_processor(): call("ioperm", 0x80, 1, 1)
@attempt
def name_of_the_host(): check(libc.sethostname(b"drums", 5))
@attempt
def clock_of_the_host():
    import time
    time.clock_settime(time.CLOCK_REALTIME, time.time())
@attempt
def swap(): check(libc.swapon(b"/root", 0))
@attempt
def accounting(): check(libc.acct(None))
@attempt
def program_for_the_kernel(): call("bpf", 5, ctypes.create_string_buffer(128), 128)
@attempt
def real_time(): os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
@attempt
def before_others(): os.setpriority(os.PRIO_PROCESS, 0, -5)
@attempt
def never_ended_for_memory():
    with open("/proc/self/oom_score_adj", "w") as f:
        f.write("-1000")
@attempt
def more_than_the_hard_limit():
    import resource
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard + 1, hard + 1))
@attempt
def device_of_a_tunnel(): return opened("/dev/net/tun", os.O_RDWR)
@attempt
def trusted_attribute_of_overlay(): os.setxattr("/root", "trusted.overlay.redirect", b"/../../etc")


@wish
@child
def user_namespace(): as_root_of_a_namespace()
@attempt
def memory_protection_key():  # CRIU would lose it
    call("pkey_alloc", 0, 0)
@wish
def io_uring(): os.close(call("io_uring_setup", 1, ctypes.create_string_buffer(256)))
@wish
def userfaultfd(): os.close(call("userfaultfd", 1))
@wish
def keyring_of_the_user(): call("keyctl", 0, -4, 0)
@wish
def performance_counters():
    a = ctypes.create_string_buffer(128)
    a[0:8] = (1).to_bytes(4, "little") + (128).to_bytes(4, "little")
    os.close(call("perf_event_open", a, 0, -1, -1, 0))
@wish
def log_of_the_kernel(): check(libc.klogctl(10, None, 0))
@wish
def write_to_pressure(): return opened("/proc/pressure/cpu", os.O_RDWR)

said = {"attempts": {}, "wishes": {}}
for into, what in (("attempts", attempts), ("wishes", wishes)):
    for name, f in what.items():
        try:
            said[into][name] = "done: " + str(f())
        except (OSError, ValueError) as e:
            said[into][name] = "refused: " + str(e)
print(json.dumps(said))
