package criu

import (
	"bufio"
	"errors"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// LogTimes are parts of a restore as the time stamps of CRIU's log bound them.
// The log has the lines that they need on level [LogDebug] only.
type LogTimes struct {
	// Namespaces is from the first task's "Restoring namespaces" until it forks the
	// others: hostname, IPC, network, mounts. Helpers is not in it.
	Namespaces time.Duration
	// Helpers is what waiting for the programs took that the log names: ip and the
	// search for iptables. The tar of a tmpfs has no line and is in Namespaces.
	Helpers time.Duration
	// Pages is from the first restorer's first line to the last one's last: mappings
	// filled with pages, threads, signals, of all tasks side by side.
	Pages time.Duration
}

// ErrNoTimes is of a log without what LogTimes needs.
var ErrNoTimes = errors.New("the log has no time stamps of a restore's parts: its level is too low, or it was cut short")

var (
	// stampedLine: "(00.015587)      1: text" and "(00.058574) pie: 30: text"; criu's own lines have no task.
	stampedLine = regexp.MustCompile(`^\((\d+)\.(\d{6})\)\s+(pie:\s+)?(?:(\d+):\s+)?(.*)$`)
	helperLine  = regexp.MustCompile(`^net:\s+Running ip |ip6?tables(-legacy)?(-nft)?-restore -V failed|^\s*Running (ip6?tables|nftables) `)
)

// ParseLogTimes reads a restore's log.
func ParseLogTimes(r io.Reader) (LogTimes, error) {
	var t LogTimes
	var begin, forks, first, last, helper time.Duration
	var began, forked, restored, waiting bool
	root := ""
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		m := stampedLine.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		seconds, err := strconv.ParseInt(m[1], 10, 32)
		if err != nil {
			continue
		}
		micros, _ := strconv.ParseInt(m[2], 10, 32)
		at := time.Duration(seconds)*time.Second + time.Duration(micros)*time.Microsecond
		pie, task, text := m[3] != "", m[4], m[5]
		switch {
		case pie:
			if !restored {
				first, restored = at, true
			}
			last = max(last, at)
		case !began:
			if strings.HasPrefix(text, "Restoring namespaces ") {
				begin, began, root = at, true, task
			}
		case task == root && !forked:
			if waiting {
				t.Helpers += at - helper
			}
			if waiting = helperLine.MatchString(text); waiting {
				helper = at
			}
			if strings.HasPrefix(text, "Forking task with ") {
				forks, forked = at, true
			}
		}
	}
	if err := lines.Err(); err != nil {
		return LogTimes{}, err
	}
	if !began || !restored {
		return LogTimes{}, ErrNoTimes
	}
	if !forked { // a tree of one task
		forks = first
	}
	t.Namespaces, t.Pages = forks-begin-t.Helpers, last-first
	return t, nil
}

// ReadLogTimes reads a restore's log file.
func ReadLogTimes(file string) (LogTimes, error) {
	f, err := os.Open(file)
	if err != nil {
		return LogTimes{}, err
	}
	defer f.Close()
	return ParseLogTimes(f)
}
