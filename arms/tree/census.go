package tree

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/locks"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Census is the slot as it was while it stood still for its dump.
type Census struct {
	Reference bench.Reference
	Locks     []bench.Lock
	State     bench.StateManifest
	// Memory is what the tree takes of the host's; nothing is judged by it.
	Memory engine.Reading[engine.Memory]
	// Server is the digest of the guest server's program.
	Server bench.Fact
}

// Census reads the tree, which stands still, and refuses what cannot be dumped:
// ErrRefused with findings, ErrUnknown where something could not be read.
func (t Tree) Census(ref engine.GuestReference) (c Census, err error) {
	o := t.Observe(engine.ViewHost, []engine.Aspect{engine.AspectMounts, engine.AspectNetwork, engine.AspectLocks,
		engine.AspectProcesses, engine.AspectEnclosure, engine.AspectState, engine.AspectMemory})
	c.Memory = o.Memory
	e := &engine.Error{Op: "dump " + t.Name}
	refuse := func(found []bench.Finding) error {
		e.Err = fmt.Errorf("%w: %s %s", engine.ErrRefused, found[0].Subject, found[0].Text)
		e.Hint, e.Findings = found[0].Hint, found
		return e
	}
	if found, ok := o.Enclosure.Get(); ok && len(found) > 0 {
		return c, refuse(found)
	}
	if mounts, ok := o.Mounts.Get(); ok {
		if found := engine.MountContract(mounts); len(found) > 0 {
			return c, refuse(found)
		}
	}
	unknown := func(what, reason string) error {
		e.Err = fmt.Errorf("%w: %s: %s", engine.ErrUnknown, what, reason)
		return e
	}
	var ok bool
	if _, ok = o.Enclosure.Get(); !ok {
		return c, unknown("enclosure", o.Enclosure.Reason())
	}
	if c.Reference.Mounts, ok = o.Mounts.Get(); !ok {
		return c, unknown("mounts", o.Mounts.Reason())
	}
	if c.Reference.Network, ok = o.Network.Get(); !ok {
		return c, unknown("network", o.Network.Reason())
	}
	if c.Reference.Processes, ok = o.Processes.Get(); !ok {
		return c, unknown("processes", o.Processes.Reason())
	}
	if c.Locks, ok = o.Locks.Get(); !ok {
		return c, unknown("locks", o.Locks.Reason())
	}
	if c.State, ok = o.State.Get(); !ok {
		return c, unknown("state", o.State.Reason())
	}
	c.Reference.Live, c.Reference.Canary = ref.Live, ref.Canary
	c.Server = ServerFact(t.Pid)
	return c, nil
}

// ServerFact is the digest of the program that the first process runs: the guest server.
func ServerFact(pid int) bench.Fact {
	f := bench.Fact{Name: engine.ServerDigest, View: engine.ViewStopped}
	program, err := os.Open(fmt.Sprintf("/proc/%d/exe", pid))
	if err == nil {
		defer program.Close()
		sum := sha256.New()
		if _, err = io.Copy(sum, program); err == nil {
			f.Known, f.Value, f.Source = true, hex.EncodeToString(sum.Sum(nil)), "the first process's program"
			return f
		}
	}
	f.Reason = err.Error()
	return f
}

// WantedLocks is CRIU's own lock image; the kernel's word, the census, must agree with it.
func WantedLocks(op string, img criu.Images, census []bench.Lock) ([]bench.Lock, error) {
	wanted, err := img.Locks()
	if err != nil {
		return nil, err
	}
	missing, extra := locks.Diff(wanted, census)
	if len(missing)+len(extra) == 0 {
		return NonNil(wanted), nil
	}
	e := &engine.Error{Op: op, Err: fmt.Errorf("criu's lock image and /proc disagree: %d locks only in the image, %d only in fdinfo", len(missing), len(extra))}
	for _, l := range missing {
		e.Findings = append(e.Findings, bench.Finding{Verdict: engine.Fail, Subject: locks.Describe(l), Text: "is in criu's lock image but not in fdinfo"})
	}
	for _, l := range extra {
		e.Findings = append(e.Findings, bench.Finding{Verdict: engine.Fail, Subject: locks.Describe(l), Text: "is in fdinfo but not in criu's lock image"})
	}
	return nil, e
}
