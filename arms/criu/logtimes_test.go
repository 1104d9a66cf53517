package criu

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// Lines of a real log of CRIU 4.2.1, the times of the parts beside them.
const timedLog = `(00.003316) Forking task with 1 pid (flags 0x6c028000)
(00.005510)      1: Restoring namespaces 1 flags 0x6c028000
(00.013681)      1: net: Restoring link lo type 1
(00.015587)      1: net: 	Running ip addr restore  
Error: ipv4: Address already assigned.
(00.019446)      1: net: 	Running ip rule restore  
(00.031475)      1: Error (criu/util.c:1723): iptables-restore -V failed
(00.034174)      1: No iptables-10.img image
(00.035477)      1: mnt: Restoring mount namespace
(00.049557)      1: Forking task with 11 pid (flags 0x0)
(00.052291)     32: Forking task with 33 pid (flags 0x0)
(00.058574) pie: 30: Switched to the restorer 30
(00.060735)     10: unix: Opening master (stage 0 id 0x73 ino 22781583 peer 22781582)
(00.096422) pie: 1: Switched to the restorer 1
(00.102232) Restore finished successfully. Tasks resumed.
`

func TestLogTimes(t *testing.T) {
	got, err := ParseLogTimes(strings.NewReader(timedLog))
	us := time.Microsecond
	want := LogTimes{Helpers: (34174 - 15587) * us, Namespaces: (49557-5510)*us - (34174-15587)*us, Pages: (96422 - 58574) * us}
	if err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	// One that was cut short, and one of a lower level, have no times instead of wrong ones.
	for _, log := range []string{"", timedLog[:strings.Index(timedLog, "(00.058574)")], "(00.000001) Warn  (criu/net.c:1): x\n", strings.ReplaceAll(timedLog, "(00.", "(xx.")} {
		if got, err := ParseLogTimes(strings.NewReader(log)); !errors.Is(err, ErrNoTimes) || got != (LogTimes{}) {
			t.Errorf("%+v, %v of %q", got, err, log)
		}
	}
}
