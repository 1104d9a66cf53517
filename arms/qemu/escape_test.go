package qemu

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

//go:embed testdata/intruder.py
var intruder []byte

// A program of the guest's, root and nobody, looks for what leads out of the machine: none of it does. The image and
// the layers are what they were.
func TestEscapes(t *testing.T) {
	s := makeSlotOf(t, MethodFile, manifest(t))
	s.ready(t, s.slot)
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
	addresses := []string{"127.0.0.1"}
	if all, err := net.InterfaceAddrs(); err == nil {
		for _, a := range all {
			if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil {
				addresses = append(addresses, ip.IP.String())
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	client := s.client(s.slot)
	if err := client.WriteFile(ctx, "/root/intruder.py", intruder, 0o600); err != nil {
		t.Fatal(err)
	}
	args, err := json.Marshal(map[string]any{"socket": name, "addresses": addresses, "port": tcp.Addr().(*net.TCPAddr).Port, "secrets": []string{s.ws.State, s.ws.ID}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := client.Execute(ctx, []string{"/usr/bin/python3", "-I", "/root/intruder.py", string(args)}, 4*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]map[string]string
	if err := json.Unmarshal(r.Stdout, &all); err != nil {
		t.Fatalf("%v, exit %d: %.2000s %.2000s", err, r.Exit, r.Stdout, r.Stderr)
	}
	for _, uid := range []string{"0", "65534"} {
		if len(all[uid]) < 11 {
			t.Errorf("uid %s: %d attempts", uid, len(all[uid]))
		}
		for attempt, result := range all[uid] {
			if !strings.HasPrefix(result, "refused: ") {
				t.Errorf("uid %s: %s: %s", uid, attempt, result)
			}
		}
		t.Logf("uid %s: %v", uid, all[uid])
	}
	if err := s.root.Verify(ctx); err != nil {
		t.Error(err)
	}
	// Who breaks out of the machine is in QEMU: in a network namespace of its own, below a filter of system calls.
	pids, err := s.slot.(*slot).group.Pids()
	if err != nil || len(pids) != 1 {
		t.Fatalf("processes of the machine: %v, %v", pids, err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pids[0]))
	if err != nil || !strings.Contains(string(status), "\nSeccomp:\t2\n") {
		t.Errorf("QEMU has no filter: %v\n%s", err, status)
	}
	own, err := os.Readlink("/proc/self/ns/net")
	theirs, terr := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pids[0]))
	if err != nil || terr != nil || own == theirs {
		t.Errorf("QEMU is in network namespace %s, we in %s: %v %v", theirs, own, err, terr)
	}
}
