package procfs

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Options say what a checkpoint may hold.
type Options struct {
	// EstablishedTCP is the manifest's policy: "refuse" (or empty) or "close".
	EstablishedTCP string
	// Locks is the arm's setting: "repair", "criu", or "refuse" (or empty).
	Locks string
	// Holders are host pids outside the slot that may share its network
	// namespace: an arm whose namespace a process of its own keeps open.
	Holders []int
	// Tracer is the host pid of the CRIU that holds the tree stopped while this
	// is asked, inside of a dump; 0 outside of one. Any other tracer is a finding.
	Tracer int
}

// Enclosure lists what ties a slot to the outside, or cannot be dumped, each
// offender with its pid inside the slot, its descriptor and a remedy. An empty
// list means that every check below was made and found nothing.
//
//	processes   not a descendant of pid 1 (joined by setns); traced; with a session or group leader outside;
//	            sharing a namespace with the outside; outside but in one of the slot's namespaces; dead leader, live threads
//	files       open, mapped, cwd or root on a mount that the slot does not have; devices and anonymous files that CRIU cannot dump;
//	            terminals whose other side the slot does not hold; pidfds of processes outside
//	shared      pipes, fifos, sockets, eventfds, memfds and other anonymous files that a process outside holds too
//	unix        peer outside; peer gone (half-open)
//	inet        connections that are not listening (unless the policy is close), connections that wait to be accepted,
//	            ends of connections in the slot's network held outside; families and protocols that CRIU has no image for
//	memory      mappings with a protection key
//	locks       held or waited for on both sides; leases; any lock where the setting is refuse
//
// Not seen: memory that is shared by mapping alone with a process outside,
// descriptors in flight in a socket's queue, and what a process holds that is
// older than the slot and has more capabilities than we do (a container's init).
// A younger one of that kind is engine.ErrUnknown, if it is there for longer than
// strangerTime: what a container's init starts is one until it has given up its
// capabilities, and then it is looked at as any other.
func Enclosure(initPid int, o Options) ([]bench.Finding, error) {
	fail := func(err error) ([]bench.Finding, error) {
		return nil, fmt.Errorf("check enclosure of slot: %w", err)
	}
	tasks, others, err := inspectable(strangerTime, func() ([]Task, []int, error, error) { return census(initPid) })
	if err != nil {
		return fail(err)
	}
	e := &enclosure{init: initPid, options: o, tasks: tasks, others: others, proc: os.DirFS(root), byPid: map[int]Task{}}
	for _, t := range tasks {
		e.byPid[t.Pid] = t
	}
	for _, check := range []func() error{
		e.checkProcesses, e.checkNamespaces, e.readDescriptors, e.checkMounts, e.checkShared, e.checkKinds, e.checkSockets, e.checkLocks, e.checkKeys,
	} {
		if err := check(); err != nil {
			return fail(err)
		}
	}
	return e.findings, nil
}

// strangerTime is how long a process that may not be inspected is waited for.
const strangerTime = time.Second

// inspectable repeats a census, anew each time, until no process is hidden.
func inspectable(patience time.Duration, census func() (tasks []Task, others []int, hidden, err error)) ([]Task, []int, error) {
	for until := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		tasks, others, hidden, err := census()
		if err != nil || hidden == nil || time.Now().After(until) {
			return tasks, others, errors.Join(err, hidden)
		}
	}
}

// add appends a finding once.
func (e *enclosure) add(subject, text, hint string) {
	f := bench.Finding{Verdict: engine.Fail, Subject: subject, Text: text, Hint: hint}
	if !slices.Contains(e.findings, f) {
		e.findings = append(e.findings, f)
	}
}

// subject names a process by its pid in the slot.
func (t Task) subject() string { return fmt.Sprintf("pid %d (%s)", t.Inner, t.Status.Name) }

// subject names a descriptor of a process in the slot.
func (e *enclosure) subject(d Descriptor) string {
	return fmt.Sprintf("%s fd %d", e.byPid[d.Pid].subject(), d.FD)
}

// stranger names a process outside the slot.
func (e *enclosure) stranger(pid int) string {
	if pid <= 0 {
		return "a process that is not visible"
	}
	if st, err := stat(pid); err == nil {
		return fmt.Sprintf("host pid %d (%s)", pid, st.Comm)
	}
	return fmt.Sprintf("host pid %d", pid)
}

// strangers names holders outside the slot.
func (e *enclosure) strangers(hs []holder) string {
	var names []string
	for _, h := range hs {
		if name := e.stranger(h.pid); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}
