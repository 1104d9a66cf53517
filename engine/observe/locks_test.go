package observe

import (
	"errors"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

const locksText = `1: POSIX  ADVISORY  WRITE 812 00:2d:41 1073741826 1073742335
2: FLOCK  ADVISORY  WRITE 13 fe:01:8198 0 EOF
2: -> FLOCK  ADVISORY  WRITE 99 fe:01:8198 0 EOF
2:  -> FLOCK  ADVISORY  READ 100 fe:01:8198 0 EOF
3: OFDLCK ADVISORY  READ -1 00:1a:7 0 9223372036854775806
4: LEASE  BREAKING  UNLCK 5 00:1a:18446744073709551615 0 EOF
5: DELEG  ACTIVE    READ 5 00:1a:9 0 EOF
6: POSIX  ADVISORY  READ 0 <none>:0 128 128
`

func TestParseLocks(t *testing.T) {
	want := []FileLock{
		{ID: 1, Type: LockPOSIX, State: "ADVISORY", Mode: "WRITE", Pid: 812, Dev: unix.Mkdev(0, 0x2d), Ino: 41, Start: 1073741826, End: 1073742335},
		{ID: 2, Type: LockFlock, State: "ADVISORY", Mode: "WRITE", Pid: 13, Dev: unix.Mkdev(254, 1), Ino: 8198, End: -1},
		{ID: 2, Waiting: true, Type: LockFlock, State: "ADVISORY", Mode: "WRITE", Pid: 99, Dev: unix.Mkdev(254, 1), Ino: 8198, End: -1},
		{ID: 2, Waiting: true, Type: LockFlock, State: "ADVISORY", Mode: "READ", Pid: 100, Dev: unix.Mkdev(254, 1), Ino: 8198, End: -1},
		{ID: 3, Type: LockOFD, State: "ADVISORY", Mode: "READ", Pid: -1, Dev: unix.Mkdev(0, 0x1a), Ino: 7, End: 9223372036854775806},
		{ID: 4, Type: LockLease, State: "BREAKING", Mode: "UNLCK", Pid: 5, Dev: unix.Mkdev(0, 0x1a), Ino: 18446744073709551615, End: -1},
		{ID: 5, Type: "DELEG", State: "ACTIVE", Mode: "READ", Pid: 5, Dev: unix.Mkdev(0, 0x1a), Ino: 9, End: -1},
		{ID: 6, Type: LockPOSIX, State: "ADVISORY", Mode: "READ", Start: 128, End: 128},
	}
	have, err := ReadLocks(fstest.MapFS{"locks": {Data: []byte(locksText)}})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, have); d != "" {
		t.Error(d)
	}
}

func TestParseLocksRefusesWhatItDoesNotUnderstand(t *testing.T) {
	for _, line := range []string{
		"POSIX  ADVISORY  WRITE 812 00:2d:41 0 EOF",
		"1:",
		"1: ->",
		"x: POSIX  ADVISORY  WRITE 812 00:2d:41 0 EOF",
		"1: POSIX  ADVISORY  BOTH 812 00:2d:41 0 EOF",
		"1: POSIX  ADVISORY  WRITE pid 00:2d:41 0 EOF",
		"1: POSIX  ADVISORY  WRITE -2 00:2d:41 0 EOF",
		"1: POSIX  ADVISORY  WRITE 812 00:2d 0 EOF",
		"1: POSIX  ADVISORY  WRITE 812 zz:2d:41 0 EOF",
		"1: POSIX  ADVISORY  WRITE 812 00:2d:41 -1 EOF",
		"1: POSIX  ADVISORY  WRITE 812 00:2d:41 10 9",
		"1: POSIX  ADVISORY  WRITE 812 00:2d:41 0 eof",
		"1: POSIX  ADVISORY  WRITE 812 00:2d:41 0",
		"1: POSIX  ADVISORY  WRITE 812 00:2d:41 0 99999999999999999999",
	} {
		if l, err := ParseLocks(strings.NewReader(locksText + line + "\n")); !errors.Is(err, ErrFormat) || l != nil {
			t.Errorf("%q: %v, %v", line, l, err)
		}
	}
}

func TestParseFDInfo(t *testing.T) {
	text := "pos:\t17\nflags:\t02100002\nmnt_id:\t29\nino:\t41\nlock:\t1: POSIX  ADVISORY  READ 812 00:2d:41 128 128\nlock:\t2: OFDLCK ADVISORY  WRITE -1 00:2d:41 0 EOF\neventfd-id: 5\ntfd: 3 events: 1\ntfd: 4 events: 2\nnoise\n"
	want := FDInfo{
		Pos: 17, Flags: 0o2100002, MntID: 29, Ino: 41,
		Locks: []FileLock{
			{ID: 1, Type: LockPOSIX, State: "ADVISORY", Mode: "READ", Pid: 812, Dev: unix.Mkdev(0, 0x2d), Ino: 41, Start: 128, End: 128},
			{ID: 2, Type: LockOFD, State: "ADVISORY", Mode: "WRITE", Pid: -1, Dev: unix.Mkdev(0, 0x2d), Ino: 41, End: -1},
		},
		Fields: map[string]string{"eventfd-id": "5", "tfd": "3 events: 1"},
	}
	have, err := ReadFDInfo(fstest.MapFS{"7/fdinfo/3": {Data: []byte(text)}}, 7, 3)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, have); d != "" {
		t.Error(d)
	}
	for _, bad := range []string{"", "pos:\t1\nflags:\t02\n", "pos:\tx\nflags:\t02\nmnt_id:\t1\n", "pos:\t1\nflags:\t9\nmnt_id:\t1\n", text + "lock:\t1: POSIX\n"} {
		if _, err := ParseFDInfo(strings.NewReader(bad)); !errors.Is(err, ErrFormat) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestLocksOfThisKernel takes real locks and reads them back in both places.
func TestLocksOfThisKernel(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "locked")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: 1 << 40, Len: 10}); err != nil {
		t.Fatal(err)
	}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK, Start: 5}); err == nil {
		t.Fatal("an OFD lock over a POSIX lock should conflict")
	}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK, Start: 5, Len: 1}); err != nil {
		t.Fatal(err)
	}
	info, err := ReadFDInfo(os.DirFS("/proc"), os.Getpid(), int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	table, err := ReadLocks(os.DirFS("/proc"))
	if err != nil {
		t.Fatal(err)
	}
	has := func(locks []FileLock, want FileLock) {
		t.Helper()
		for _, l := range locks {
			l.ID, l.State, l.Dev = 0, "", 0
			if l == want {
				return
			}
		}
		t.Errorf("%+v is not in %+v", want, locks)
	}
	for _, locks := range [][]FileLock{info.Locks, table} {
		has(locks, FileLock{Type: LockPOSIX, Mode: "WRITE", Pid: os.Getpid(), Ino: info.Ino, Start: 1 << 40, End: 1<<40 + 9})
		has(locks, FileLock{Type: LockOFD, Mode: "READ", Pid: -1, Ino: info.Ino, Start: 5, End: 5})
	}
	if info.Flags&unix.O_ACCMODE != unix.O_RDWR {
		t.Errorf("flags %o", info.Flags)
	}
}
