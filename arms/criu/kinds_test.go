package criu

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
)

// The golden logs are what CRIU 4.2.1 wrote, where this machine could make it
// write that, else what its source says (the file name ends in -source.log).
func TestGoldenLogs(t *testing.T) {
	tests := []struct {
		file  string
		kind  Kind
		lines []string
	}{
		{"locks.log", KindLocks, []string{"Some file locks are hold by dumping tasks! You can try --file-locks to dump them."}},
		{"root-mount.log", KindRootMount, []string{"mnt: 86:./dev/zero doesn't have a proper root mount"}},
		{"chroot-source.log", KindChroot, []string{"The root task has another root than mntns: /srv/slot"}},
		{"mount-source.log", KindMount, []string{"mnt: FS mnt ./sys/fs/bpf dev 0x2d root / unsupported id 31"}},
		{"session.log", KindSession, []string{"A session leader of 23383(1) is outside of its pid namespace"}},
		{"external-socket.log", KindUnixSocket, []string{"unix: Unix socket 378327 not found", "Dump files (pid: 23484) failed with -1"}},
		{"external-socket-source.log", KindUnixSocket, []string{
			"unix: External socket is used. Consider using --ext-unix-sk option.", "Dump files (pid: 812) failed with -1"}},
		{"tcp.log", KindTCP, []string{"inet: Connected TCP socket, consider using --tcp-established option.", "Dump files (pid: 23396) failed with -1"}},
		{"mptcp.log", KindMPTCP, []string{
			"inet: Unsupported proto 262 for socket 5bf2a",
			`inet: For Go programs, consider using "GODEBUG=multipathtcp=0" to disable MPTCP`,
			"Dump files (pid: 23411) failed with -1"}},
		{"rlimit.log", KindRlimit, []string{"Can't get rlimit 0: Operation not permitted", "Dump core (pid: 23433) failed with -1"}},
		{"ghost-limit.log", KindGhostSize, []string{"Can't dump ghost file /data/large of 3145728 size, increase limit", "Dump files (pid: 23443) failed with -1"}},
		{"in-flight.log", KindInFlight, []string{"unix: Non-empty write queue on an in-flight socket 0x5c4fb", "Dump files (pid: 23461) failed with -1"}},
		{"file-changed.log", KindFileChanged, []string{"File data/readonly has bad size 7 (expect 4096)", "Unable to open fd=7 id=0x9"}},
		{"ghost-race-source.log", KindGhostRace, []string{
			"Can't link root/.cache/dconf/user.cr.2.ghost -> root/.cache/dconf/user: No such file or directory", "Unable to open vma 0x7f5a3c000000"}},
		{"no-root.log", KindCrash, []string{"mnt: BUG at criu/mount.c:48", "23601 killed by signal 11: Segmentation fault"}},
		{"killed-source.log", KindKilled, []string{"812 killed by signal 9: Killed"}},
		{"images.log", KindImages, []string{"Read 2 bytes while 4 expected on /images/fs-1.img: No such file or directory"}},
		{"no-ip.log", KindHelper, []string{`execvp("ip", ...) failed: No such file or directory`, "net: IP tool failed on addr save", "Namespaces dumping finished with error 65280"}},
		{"pid-source.log", KindPidTaken, []string{"Can't fork for 1: File exists"}},
		{"unknown.log", "", []string{"second", "third", "fourth"}},
		{"noise.log", "", nil},
		{"last-words.log", "", []string{"Dumping FAILED."}},
	}
	for _, test := range tests {
		t.Run(test.file, func(t *testing.T) {
			log, err := os.ReadFile(filepath.Join("testdata", "logs", test.file))
			if err != nil {
				t.Fatal(err)
			}
			kind, lines := diagnose(errorLines(log))
			if kind != test.kind || !slices.Equal(lines, test.lines) {
				t.Errorf("kind %q, lines %q", kind, lines)
			}
			f := &Failure{Kind: kind, Lines: lines}
			for _, line := range lines {
				if !strings.Contains(f.Error(), line) {
					t.Errorf("%q is not in %q", line, f)
				}
			}
		})
	}
}

// Every kind has a remedy and, but for the crash of the program itself, a sign; none is tried twice or never.
func TestKindsAreComplete(t *testing.T) {
	for k, v := range kinds {
		if v.hint == "" || v.sign == nil {
			t.Errorf("%s has no hint or no sign", k)
		}
		if n := slices.Index(kindOrder, k); n < 0 || slices.Contains(kindOrder[n+1:], k) {
			t.Errorf("%s does not stand in the order exactly once", k)
		}
	}
	if len(kinds) != len(kindOrder) {
		t.Errorf("%d kinds, %d in order", len(kinds), len(kindOrder))
	}
	if !errors.Is(&Failure{Kind: KindInFlight}, ErrTransient) || !errors.Is(&Failure{Kind: KindLocks}, engine.ErrRefused) {
		t.Error("sentinels do not show")
	}
	if errors.Is(&Failure{}, engine.ErrRefused) || errors.Is(&Failure{Kind: KindCrash}, engine.ErrRefused) {
		t.Error("an unknown failure or a crash counts as a refusal")
	}
}
