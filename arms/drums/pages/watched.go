package pages

import (
	"bufio"
	"fmt"
	"os"
	"strings"
)

// Watched says whether the kernel still has a userfaultfd fill pages of a process: flag "um" of a mapping in
// /proc/PID/smaps (proc(5)).
func Watched(pid int) (bool, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return false, err
	}
	defer f.Close()
	scan := bufio.NewScanner(f)
	watched := false
	for scan.Scan() {
		if flags, ok := strings.CutPrefix(scan.Text(), "VmFlags:"); ok && strings.Contains(flags+" ", " um ") {
			watched = true
		}
	}
	return watched, scan.Err()
}
