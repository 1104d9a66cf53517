package treetest

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/docker/go-units"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/confine"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

//go:embed intruder.py
var intruder []byte

// said is what the intruder prints.
type said struct{ Attempts, Wishes map[string]string }

// Escapes has a root program of the guest look for the host, in many ways, in a
// slot that was started and in the same one once it was restored: none of them works.
func (h Harness) Escapes(t *testing.T) {
	s := h.Make(t, h.Manifest(t))
	place := engine.Place(s.Slot)
	defer func() { s.Release(t, place, s.Arm) }()
	s.Ready(t, s.Slot)
	s.confined(t, s.Slot)
	s.intrude(t, "started", s.Slot)

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	criu := s.watchCRIU()
	cp, dumped, err := s.Slot.Dump(ctx, bench.DumpParams{Policy: *s.m.Checkpoint, Port: s.m.Guest.Server.Port, Exclude: []string{}}, engine.GuestReference{})
	if err != nil {
		t.Fatal(err)
	}
	place = dumped
	// What a guest's root left in its layer, set-user-id programs too, nobody but root gets to.
	for _, layer := range cp.Handle.Layers {
		above, err := os.Stat(filepath.Join(cp.Dir, filepath.Dir(layer)))
		if err != nil || filepath.Dir(layer) == "." || above.Mode().Perm() != 0o700 {
			t.Errorf("layer %s of the checkpoint: %v, %v", layer, above, err)
		}
	}
	criu().limited(t, "dump", true)
	criu = s.watchCRIU()
	stopped, err := s.Arm.Restore(ctx, s.ws, s.root, cp, place, bench.RestoreParams{
		Slot: "slot-0", Resources: s.m.Resources, Policy: *s.m.Checkpoint, Exclude: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	place = stopped
	// runc puts a criu there once it runs.
	criu().limited(t, "restore", false)
	s.confined(t, stopped)
	slot, err := stopped.Resume(ctx)
	if err != nil {
		t.Fatal(err)
	}
	place = slot
	s.Ready(t, slot)
	s.intrude(t, "restored", slot)
}

// confined requires that the host's view has the slot's tasks confined.
func (s Made) confined(t *testing.T, slot interface {
	Observe(context.Context, ...engine.Aspect) engine.Observation
}) {
	t.Helper()
	r := slot.Observe(t.Context(), engine.AspectLimits).Limits
	l, ok := r.Get()
	if !ok {
		t.Fatalf("limits: %s", r.Reason())
	}
	if len(l.Confinement.Beyond) > 0 || l.Confinement.Devices == "" || l.Confinement.Capabilities != confine.Names(confine.KeptMask()) {
		t.Errorf("%+v", l.Confinement)
	}
}

func (s Made) intrude(t *testing.T, when string, slot engine.Slot) {
	t.Helper()
	// Sockets of the host's that nobody in a slot can reach.
	name := fmt.Sprintf("drums-test-%d", os.Getpid())
	abstract, err := net.Listen("unix", "@"+name)
	if err != nil {
		t.Fatal(err)
	}
	defer abstract.Close()
	tcp, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	var root unix.Stat_t
	if err := unix.Stat(s.ws.State, &root); err != nil {
		t.Fatal(err)
	}
	addresses := []string{"127.0.0.1"}
	if all, err := net.InterfaceAddrs(); err == nil {
		for _, a := range all {
			if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil {
				addresses = append(addresses, ip.IP.String())
			}
		}
	}
	memory, err := units.RAMInBytes(string(s.m.Resources.Memory))
	if err != nil {
		t.Fatal(err)
	}
	client := guest.New(slot.Dial, int(s.m.Guest.Server.Port), guest.DefaultLimits())
	if err := client.WriteFile(t.Context(), "/root/intruder.py", intruder, 0o600); err != nil {
		t.Fatal(err)
	}
	// Root, and nobody: a user namespace of theirs has other rights over what is root's.
	for _, uid := range []int{0, 65534} {
		s.attempts(t, fmt.Sprintf("%s, uid %d", when, uid), client, map[string]any{
			"uid": uid, "disk": []uint32{unix.Major(root.Dev), unix.Minor(root.Dev)}, "readonly": confine.ReadOnlyPaths(), "pid": os.Getpid(),
			"pids": s.m.Resources.Pids, "memory": memory,
			"socket": name, "addresses": addresses, "port": tcp.Addr().(*net.TCPAddr).Port,
		})
	}
}

// attempts has the intruder try everything, and requires that all of it is refused.
func (s Made) attempts(t *testing.T, when string, client *guest.Client, settings map[string]any) {
	t.Helper()
	args, err := json.Marshal(settings)
	if err != nil {
		t.Fatal(err)
	}
	r, err := client.Execute(t.Context(), []string{"/usr/bin/python3", "-I", "/root/intruder.py", string(args)}, 3*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	var got said
	if err := json.Unmarshal(r.Stdout, &got); err != nil {
		t.Fatal(errors.Join(err, fmt.Errorf("exit %d: %.2000s %s", r.Exit, r.Stdout, r.Stderr)))
	}
	if len(got.Attempts) < 60 {
		t.Errorf("%s: %d attempts", when, len(got.Attempts))
	}
	for attempt, result := range got.Attempts {
		if !strings.HasPrefix(result, "refused: ") {
			t.Errorf("%s: %s: %s", when, attempt, result)
		}
	}
	t.Logf("%s: what a slot may: %v", when, got.Wishes)
}
