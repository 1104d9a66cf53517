package hostexec

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
)

// renames does the task as a plain HTTP client does, and says what it was told.
const renames = `set -eu
curl -sf -H 'Content-Type: application/json' -d '{"command": ["mv", "/root/Desktop/todo", "/root/Desktop/done"]}' "$DRUMS_URL/execute" >answer.json
printf '%s|%s|%s|%s|%s\n' "$DRUMS_URL" "$DRUMS_INSTRUCTION" "$DRUMS_SEED" "$DRUMS_DEADLINE" "$DRUMS_TASK"
echo to stderr >&2
`

func TestAgentActs(t *testing.T) {
	for _, reset := range []string{"restore", "cold"} {
		t.Run(reset, func(t *testing.T) {
			ws, dir := workspace(t)
			program := script(t, ws, renames)
			p, m := plan(t, program, "20s", reset)
			// Nothing of ours listens but while an act step runs.
			sees := func(e engine.Event) {
				if e.Kind == engine.StepStarted || e.Kind == engine.StepFinished {
					if ports := listening(t); len(ports) > 0 {
						t.Errorf("at the %v of %s, ports %v are open", e.Kind, e.Step.Id, ports)
					}
				}
			}
			begin := time.Now()
			res, receipts := execute(t, ws, p, m, sees)
			if res.Verdict != engine.RunPassed {
				t.Fatalf("%s: %s", res.Verdict, res.Reason)
			}
			urls := map[string]bool{}
			for i := range 2 {
				act := receipts[fmt.Sprintf("r%d/act", 2+i)] // after the two controls
				said := strings.Split(strings.TrimSpace(evidence(t, ws, act, "policy.stdout")), "|")
				if len(said) != 5 || said[1] != m.Task.Instruction || said[2] != fmt.Sprint(40+i) || said[4] != "rename" {
					t.Fatalf("it was told %q", said)
				}
				if deadline, err := time.Parse(time.RFC3339Nano, said[3]); err != nil || deadline.Before(begin.Add(20*time.Second)) || deadline.After(time.Now().Add(20*time.Second)) {
					t.Errorf("deadline %s: %v", said[3], err)
				}
				urls[said[0]] = true
				if c, err := net.Dial("tcp4", strings.TrimPrefix(said[0], "http://")); !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("%s after the run: %v", said[0], err)
					if err == nil {
						c.Close()
					}
				}
				for name, want := range map[string]string{"exit": "0", "connections": "1", "ended": "0", "files-left-out": "0", "sha256": string(program.SHA256)} {
					if have := fact(act, "policy."+name); have != want {
						t.Errorf("fact policy.%s is %s, want %s", name, have, want)
					}
				}
				if elapsed := fact(act, "policy.elapsed_ns"); len(elapsed) < 6 {
					t.Errorf("it took %s ns", elapsed)
				}
				if said := evidence(t, ws, act, "policy.stderr"); said != "to stderr\n" {
					t.Errorf("stderr %q", said)
				}
				if answer := evidence(t, ws, act, "policy/answer.json"); !strings.Contains(answer, `"returncode":0`) {
					t.Errorf("the server answered %s", answer)
				}
			}
			if len(urls) != 2 {
				t.Errorf("the two rollouts had %v", urls)
			}
			if len(dir.Ledger.Open()) > 0 {
				t.Errorf("still owned: %+v", dir.Ledger.Open())
			}
		})
	}
}

// What a policy can do wrong, and what the rollout is then.
func TestAgentFails(t *testing.T) {
	mark := "drums-plan-" + fmt.Sprint(os.Getpid())
	for _, c := range []struct {
		name, text, timeout, cause, says string
	}{
		{"status", "echo no idea >&2; exit 3\n", "10s", "", `exited with 3, not 0: "no idea\n"`},
		{"signal", "kill -SEGV $$\n", "10s", "", "ended by signal 11"},
		{"deadline", forking(mark), "500ms", engine.CauseDeadline, "its time of 500ms was up"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ws, _ := workspace(t)
			p, m := plan(t, script(t, ws, c.text), c.timeout, "restore")
			begin := time.Now()
			res, receipts := execute(t, ws, p, m, nil)
			if res.Verdict != engine.RunFailed {
				t.Errorf("%s: %s", res.Verdict, res.Reason)
			}
			act := receipts["r2/act"]
			if act.Verdict != engine.Fail || act.Error == nil || act.Error.Cause != c.cause || !strings.Contains(act.Error.Text, c.says) {
				t.Errorf("%s %+v", act.Verdict, act.Error)
			}
			if v := receipts["r2/evaluate-after"].Verdict; v != engine.NotRun {
				t.Errorf("it was scored: %s", v)
			}
			if took := time.Since(begin); took > 10*time.Second {
				t.Errorf("it took %s", took)
			}
			if pids := alive(t, mark); len(pids) > 0 {
				t.Errorf("still there: %v", pids)
			}
			if ports := listening(t); len(ports) > 0 {
				t.Errorf("ports %v are open", ports)
			}
		})
	}
}

// A policy whose slot died under it is not to blame.
func TestAgentOfADeadSlot(t *testing.T) {
	ws, _ := workspace(t)
	p, m := plan(t, script(t, ws, renames), "10s", "restore")
	m.Arms.Fake.Faults = []string{"act-kills-server@4"} // the base, two controls, the first rollout
	_, receipts := execute(t, ws, p, m, nil)
	if act := receipts["r2/act"]; act.Error == nil || act.Error.Cause != engine.CauseDead {
		t.Errorf("%+v", act.Error)
	}
}

// The pin is compared in the step too, before a port is opened.
func TestAgentIsAnother(t *testing.T) {
	ws, _ := workspace(t)
	mark := filepath.Join(ws.Manifest, "mark")
	program := script(t, ws, "touch "+mark+"\n")
	p, m := plan(t, program, "10s", "restore")
	script(t, ws, "touch "+mark+"; exit 0\n")
	res, receipts := execute(t, ws, p, m, nil)
	act := receipts["r2/act"]
	if res.Verdict != engine.RunFailed || act.Error == nil || act.Error.Cause != engine.CauseRefused || act.Error.Hint == "" {
		t.Errorf("%s %+v", res.Verdict, act.Error)
	}
	if fact(act, "policy.connections") != "(unknown)" {
		t.Error("a port was offered")
	}
	requireAbsent(t, mark)
}

// Connections that a policy leaves open are reset: the next look at the slot finds none.
func TestAgentLeavesConnections(t *testing.T) {
	ws, _ := workspace(t)
	text := `set -eu
host=${DRUMS_URL#http://}; port=${host#*:}
exec bash -c 'exec 3<>/dev/tcp/127.0.0.1/'$port' 4<>/dev/tcp/127.0.0.1/'$port'; printf "POST /execute HTTP/1.1\r\n" >&3
(sleep 60) & curl -sf -d "{\"command\": [\"mv\", \"/root/Desktop/todo\", \"/root/Desktop/done\"]}" '"$DRUMS_URL"'/execute'
`
	p, m := plan(t, script(t, ws, text), "20s", "restore")
	res, receipts := execute(t, ws, p, m, nil)
	if res.Verdict != engine.RunPassed {
		t.Fatalf("%s: %s", res.Verdict, res.Reason)
	}
	for _, step := range []string{"r2/act", "r3/act"} {
		act := receipts[step]
		if fact(act, "policy.connections") != "3" || fact(act, "policy.ended") == "0" {
			t.Errorf("%s: %s connections, %s reset, %s processes ended", step, fact(act, "policy.connections"), fact(act, "policy.connections-reset"), fact(act, "policy.ended"))
		}
	}
}

// listening are the TCP ports that this process listens on.
func listening(t *testing.T) (ports []string) {
	t.Helper()
	ours := map[string]bool{}
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && strings.HasPrefix(to, "socket:[") {
			ours[strings.Trim(to, "socket:[]")] = true
		}
	}
	for _, name := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		f, err := os.Open(name)
		if err != nil {
			continue // no IPv6
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			field := strings.Fields(lines.Text())
			if len(field) > 9 && field[3] == "0A" && ours[field[9]] {
				ports = append(ports, field[1])
			}
		}
		f.Close()
	}
	return ports
}
