/*
 * For tests on a machine whose root lacks CAP_SYS_RESOURCE: the kernel refuses it
 * prlimit(2) on a process of another user, also where it only asks, and CRIU asks
 * for the limits of each process that it dumps. Preloaded into CRIU, this answers
 * that one question from /proc/PID/limits, which root may read. Every other call
 * goes to the kernel as it is. It needs no library, so it goes with CRIU's private
 * C library as well as with the host's. x86-64 only.
 *
 * It is no part of the product: scripts/criu-shim builds it, and a run that uses it
 * says so in its record (fact criu.shim).
 */
typedef unsigned long word;
struct limit { word soft, hard; };

enum { READ = 0, OPEN = 2, CLOSE = 3, PRLIMIT64 = 302, RESOURCES = 16, EPERM_ = 1 };

static long kernel(long n, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long ret;
	__asm__ volatile("syscall" : "=a"(ret) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return ret;
}

/* The C library's own, found when CRIU is loaded; its address is all that errno needs. */
extern int *__errno_location(void);

static const char *const names[RESOURCES] = {
	"Max cpu time", "Max file size", "Max data size", "Max stack size", "Max core file size", "Max resident set",
	"Max processes", "Max open files", "Max locked memory", "Max address space", "Max file locks", "Max pending signals",
	"Max msgqueue size", "Max nice priority", "Max realtime priority", "Max realtime timeout",
};

static int begins(const char *line, const char *name)
{
	while (*name)
		if (*line++ != *name++)
			return 0;
	return *line == ' ';
}

static const char *number(const char *p, word *out)
{
	while (*p == ' ')
		p++;
	if (*p == 'u') { /* unlimited */
		*out = ~0ul;
		while (*p > ' ')
			p++;
		return p;
	}
	if (*p < '0' || *p > '9')
		return 0;
	for (*out = 0; *p >= '0' && *p <= '9'; p++)
		*out = *out * 10 + (word)(*p - '0');
	return p;
}

static int from_proc(int pid, int resource, struct limit *out)
{
	char path[32] = "/proc/", text[4096], digits[12];
	int at = 6, n = 0;
	long fd, size, got = 0;
	const char *line = text;

	if (pid <= 0 || resource < 0 || resource >= RESOURCES)
		return 0;
	do
		digits[n++] = (char)('0' + pid % 10);
	while (pid /= 10);
	while (n)
		path[at++] = digits[--n];
	for (n = 0; n < 8; n++)
		path[at + n] = "/limits"[n];
	if ((fd = kernel(OPEN, (long)path, 02000000 /* O_CLOEXEC */, 0, 0, 0, 0)) < 0)
		return 0;
	while (got < (long)sizeof(text) - 1 && (size = kernel(READ, fd, (long)(text + got), (long)sizeof(text) - 1 - got, 0, 0, 0)) > 0)
		got += size;
	kernel(CLOSE, fd, 0, 0, 0, 0, 0);
	text[got] = 0;
	while (*line) {
		if (begins(line, names[resource])) {
			const char *p = number(line + 25, &out->soft); /* fs/proc/base.c: "%-25s %-20s %-20s" */
			return p && number(p, &out->hard);
		}
		while (*line && *line != '\n')
			line++;
		if (*line)
			line++;
	}
	return 0;
}

long syscall(long n, long a, long b, long c, long d, long e, long f)
{
	long ret = kernel(n, a, b, c, d, e, f);

	if (n == PRLIMIT64 && ret == -EPERM_ && !c && d && from_proc((int)a, (int)b, (struct limit *)d))
		return 0;
	if (ret < 0 && ret > -4096) {
		*__errno_location() = (int)-ret;
		return -1;
	}
	return ret;
}
