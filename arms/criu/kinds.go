package criu

import (
	"regexp"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
)

// Kind is a failure of CRIU that has a remedy.
type Kind string

// The kinds, each with the source line that says it.
const (
	KindLocks       Kind = "locks"              // file-lock.c dump_file_locks
	KindRootMount   Kind = "root-mount"         // mount.c: a bind of something whose root is outside
	KindMount       Kind = "mount"              // mount.c, filesystems.c: a mount that cannot be carried
	KindChroot      Kind = "chroot"             // mount.c: the root task lives in a chroot
	KindSession     Kind = "session"            // cr-dump.c, pstree.c: a session from outside
	KindUnixSocket  Kind = "external-socket"    // sk-unix.c: the peer is outside
	KindTCP         Kind = "established-tcp"    // sk-inet.c
	KindRlimit      Kind = "rlimit"             // cr-dump.c: prlimit of another user's process
	KindGhostSize   Kind = "ghost-limit"        // files-reg.c: an unlinked file that is too large
	KindLinkRemap   Kind = "link-remap"         // files-reg.c: an unlinked file with another name
	KindFileChanged Kind = "file-changed"       // files-reg.c: the checkpoint's file is another one now
	KindGhostRace   Kind = "ghost-race"         // files-reg.c: two tasks restore one unlinked file
	KindPidTaken    Kind = "pid-taken"          // cr-restore.c
	KindInFlight    Kind = "in-flight-socket"   // sk-unix.c: a connection that nobody has accepted yet
	KindNoProcess   Kind = "no-process"         // seize.c: the root task is gone
	KindRootMissing Kind = "restore-root"       // mount.c: no --root, or no mount point
	KindImages      Kind = "images"             // image.c: not a checkpoint of this CRIU
	KindCaps        Kind = "capabilities"       // cr-service.c check_caps
	KindOption      Kind = "unsupported-option" // config.c
	KindHelper      Kind = "missing-helper"     // util.c cr_system: ip or tar
	KindMPTCP       Kind = "multipath-tcp"      // sk-inet.c: what Go's listeners are unless told otherwise
	KindKilled      Kind = "task-killed"        // cr-restore.c: a task was killed while it was restored
	KindCrash       Kind = "crash"              // the program or its restorer crashed
)

type kind struct {
	sign     *regexp.Regexp
	sentinel error
	hint     string
}

// kindOrder is the order in which lines are tried: the cause before what it brings about.
var kindOrder = []Kind{
	KindCrash, KindKilled, KindInFlight, KindMPTCP, KindLocks, KindRootMount, KindChroot, KindSession, KindUnixSocket, KindTCP, KindRlimit,
	KindHelper, KindGhostSize, KindLinkRemap, KindFileChanged, KindGhostRace, KindPidTaken, KindNoProcess, KindRootMissing,
	KindMount, KindImages, KindCaps, KindOption,
}

// kinds maps CRIU's words to a remedy. A refusal is wrong in the slot or on the
// host, and the tree runs on; a transient one goes away by itself.
var kinds = map[Kind]kind{
	KindLocks: {
		regexp.MustCompile(`Some file locks are hold by dumping tasks`), engine.ErrRefused,
		`a process of the slot holds a file lock: set the arm's locks to "repair" (or "criu", which loses POSIX locks on mapped files), or let the workload give the lock up`,
	},
	KindRootMount: {
		regexp.MustCompile(`doesn't have a proper root mount`), engine.ErrRefused,
		"a file or directory of the host is bind-mounted into the slot: make a node or file of the slot's own in its place (mknod for a device, a fresh mount for a file system)",
	},
	KindMount: {
		regexp.MustCompile(`(?i)unsupported id \d+|unsupported fs|unable to dump a file system|sharing group|master_id: \d+ shared_id|nested mount namespaces|no mapping for .* mountpoint|autodetected external mount|a few mount points can't be mounted|no root found for tree`), engine.ErrRefused,
		"the slot has a mount that CRIU cannot carry: use an overlay root, tmpfs, devpts, fresh proc and sysfs only, private propagation",
	},
	KindChroot: {
		regexp.MustCompile(`root task has another root than mntns`), engine.ErrRefused,
		"the slot's first process lives in a chroot: use pivot_root and detach the old root",
	},
	KindSession: {
		regexp.MustCompile(`session leader of .* is outside of its pid namespace|is not a session leader|Can't find a session leader`), engine.ErrRefused,
		"a process came into the slot with a session from outside: start everything as a child of the slot's first process, and that one with a session of its own",
	},
	KindUnixSocket: {
		regexp.MustCompile(`External socket is used|External socket found in image|Unix socket \d+ not found`), engine.ErrRefused,
		"a unix socket of the slot is connected to the outside: start everything as a child of the slot's first process and close what it inherited",
	},
	KindTCP: {
		regexp.MustCompile(`Connected TCP socket|Need to set the --tcp-close`), engine.ErrRefused,
		`a TCP connection is open: close it before the dump, or set checkpoint.establishedTCP to "close"`,
	},
	KindRlimit: {
		regexp.MustCompile(`Can't get rlimit`), engine.ErrRefused,
		"reading the limits of another user's process needs CAP_SYS_RESOURCE: run where root has it, or run the guest's processes as root",
	},
	KindGhostSize: {
		regexp.MustCompile(`Can't dump ghost file .* increase limit`), engine.ErrRefused,
		"an unlinked file that is still open is larger than checkpoint.ghostLimit: raise it",
	},
	KindLinkRemap: {
		regexp.MustCompile(`Can't create link remap`), engine.ErrRefused,
		"an open file was unlinked but has another hard link: let the workload close it before the dump",
	},
	KindFileChanged: {
		regexp.MustCompile(`File .* has bad (size|mode)|File .* has bad build-ID|File .* has bad checksum`), engine.ErrRefused,
		"a file that the checkpoint has open is not the one that it was: the image or a layer was changed, make the checkpoint again",
	},
	KindGhostRace: {
		regexp.MustCompile(`Can't link .*\.ghost -> `), nil,
		"two tasks raced for one unlinked file (CRIU): a checkpoint of this version of drumsbench has names that are free; make it again",
	},
	KindPidTaken: {
		regexp.MustCompile(`Can't fork for \d+: File exists|Pid \d+ do not match expected`), nil,
		"the pid is in use: restore into a pid namespace of its own",
	},
	KindInFlight: {
		regexp.MustCompile(`(?i)write queue on an in-flight socket|closed in-flight socket`), ErrTransient,
		"a connection was on its way; the slot runs on: dump again a moment later",
	},
	KindNoProcess: {
		regexp.MustCompile(`(?i)No such process`), engine.ErrDead,
		"the slot's first process is gone",
	},
	KindRootMissing: {
		regexp.MustCompile(`--root option is required|pivot_root\(`), nil,
		"the new root must be a mount point in CRIU's own mount namespace",
	},
	KindImages: {
		regexp.MustCompile(`(?i)magic doesn't match|too old image|not supported images version|unexpected eof|img trimmed|read \d+ bytes while \d+ expected|unable to open .*\.img|failed unpacking object|wrong object requested`), nil,
		"the checkpoint's images are incomplete, damaged, or of another CRIU: make the checkpoint again",
	},
	KindCaps: {
		regexp.MustCompile(`CAP_SYS_ADMIN|CAP_CHECKPOINT_RESTORE`), engine.ErrRefused,
		"run as root with CAP_SYS_ADMIN and CAP_CHECKPOINT_RESTORE",
	},
	KindOption: {
		regexp.MustCompile(`(?i)is not (enabled|supported|allowed)|are not supported|not supported by (the )?kernel`), engine.ErrRefused,
		"this CRIU or kernel lacks what was asked for; `criu check` names it",
	},
	KindHelper: {
		regexp.MustCompile(`execvp\("(ip|tar|gzip)"`), engine.ErrRefused,
		"CRIU starts ip (iproute2) and tar: install them in /usr/sbin, /usr/bin, /sbin or /bin",
	},
	KindMPTCP: {
		regexp.MustCompile(`Unsupported proto 262`), engine.ErrRefused,
		`a multipath TCP socket is open, as Go's listeners are by default: use net.ListenConfig.SetMultipathTCP(false) or GODEBUG=multipathtcp=0 in the guest`,
	},
	KindKilled: {
		regexp.MustCompile(`killed by signal 9`), nil,
		"a task was killed while it was restored, as happens when the memory limit is below what the checkpoint needs",
	},
	KindCrash: {regexp.MustCompile(`BUG at |killed by signal (4|6|7|8|11):`), nil, "a crash of criu itself: keep the log and the images, and report them to its authors"},
}

// maxLines of CRIU's error lines stand in a message.
const maxLines = 3

// errorLine is a line of a log, with or without time stamp and pid (levels 3 and up write them):
//
//	(00.024532) 1: Error (criu/files-reg.c:2175): File usr/x has bad size 4 (expect 3)
//	Error (criu/cr-dump.c:1963): Dumping FAILED.
//
// The answer's cr_errmsg has the same form. libcompel's lines have other places in the brackets.
var errorLine = regexp.MustCompile(`^(?:\(\d+\.\d+\)\s*)?(?:\s*\d+:\s*)?Error \([^)]*\):\s*(.*)$`)

// last words say only that there was an error before.
var lastWords = regexp.MustCompile(`^(Dumping FAILED|Restoring FAILED|Killing processes because of failure)`)

// noise are error lines of calls that succeed: CRIU raises its own limit where
// it may, and asks for iptables where it could do without.
var noise = regexp.MustCompile(`rlimit: Can't setup RLIMIT_NOFILE for self|execvp\("ip6?tables|^ip6?tables(-legacy|-nft)?-(save|restore) -V failed`)

// errorLines of a log, in order, noise and repetitions of one after another dropped.
func errorLines(log []byte) []string {
	var lines []string
	for _, line := range strings.Split(strings.ToValidUTF8(string(log), "?"), "\n") {
		line = strings.TrimRight(line, " \r\t")
		m := errorLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		text := m[1]
		if n := len(lines); text != "" && !noise.MatchString(text) && (n == 0 || lines[n-1] != text) {
			lines = append(lines, text)
		}
	}
	return lines
}

// diagnose finds the kind of a failure and the lines to show: the one that says
// the kind, then the last others, last words only when there is nothing else.
func diagnose(lines []string) (Kind, []string) {
	found, at := Kind(""), -1
search:
	for _, k := range kindOrder {
		for i, line := range lines {
			if kinds[k].sign.MatchString(line) {
				found, at = k, i
				break search
			}
		}
	}
	var shown []string
	for i := len(lines) - 1; i >= 0; i-- {
		room := maxLines - len(shown)
		if at >= 0 && i > at {
			room-- // kept for the line that says it
		}
		if room > 0 && !lastWords.MatchString(lines[i]) {
			shown = append([]string{lines[i]}, shown...)
		}
	}
	if len(shown) == 0 && len(lines) > 0 {
		shown = lines[len(lines)-1:]
	}
	return found, shown
}
