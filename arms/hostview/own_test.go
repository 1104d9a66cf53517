package hostview

import (
	"context"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

const runID = "0123456789ab"

// The main thread outlives the goroutine that it was locked to; it is kept for
// the main function, so that no test enters a namespace with it.
func init() { runtime.LockOSThread() }

// ownNetwork gives the test a network namespace of its own, in which nobody sees
// what it plants. Its thread ends with it.
func ownNetwork(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("%v: hostview tests need root", err)
	}
	lo, err := netlink.LinkByName("lo")
	must(t, err)
	must(t, netlink.LinkSetUp(lo))
}

func look(t testing.TB, scope Scope) Survey {
	t.Helper()
	s, err := Look(context.Background(), scope)
	must(t, err)
	return s
}

func compare(t testing.TB, s Survey) []bench.Finding {
	t.Helper()
	f, err := s.Compare(context.Background())
	must(t, err)
	return f
}

// find requires a finding about a subject that begins so.
func find(t *testing.T, findings []bench.Finding, verdict bench.Verdict, subject string) bench.Finding {
	t.Helper()
	for _, f := range findings {
		if f.Verdict == verdict && strings.HasPrefix(f.Subject, subject) {
			return f
		}
	}
	t.Fatalf("no finding %s about %q in %+v", verdict, subject, findings)
	return bench.Finding{}
}

// absent requires that nothing is said of a subject that begins so.
func absent(t *testing.T, findings []bench.Finding, subject string) {
	t.Helper()
	for _, f := range findings {
		if strings.HasPrefix(f.Subject, subject) {
			t.Errorf("a finding about %q: %+v", subject, f)
		}
	}
}

func set(t testing.TB, path, value string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(value), 0))
}

// Every fail says what to do about it, and what was wanted or found.
func requireTold(t *testing.T, findings []bench.Finding) {
	t.Helper()
	for _, f := range findings {
		if f.Verdict == engine.Fail && (f.Hint == "" || f.Want == "" && f.Have == "") {
			t.Errorf("says too little: %+v", f)
		}
	}
}
