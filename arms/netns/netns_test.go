package netns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
)

// The first thread is the one that /proc/PID shows.
func init() { runtime.LockOSThread() }

// TestMain doubles as the programs that tests start.
func TestMain(m *testing.M) {
	if os.Getenv("DRUMS_TEST_SERVER") != "" {
		serve()
		return
	}
	if os.Getenv("DRUMS_TEST_WANDERER") != "" {
		wander()
		return
	}
	os.Exit(m.Run())
}

func serve() {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		panic(err)
	}
	ifr, _ := unix.NewIfreq("lo")
	ifr.SetUint16(unix.IFF_UP | unix.IFF_LOOPBACK | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, ifr); err != nil {
		panic(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:5000")
	if err != nil {
		panic(err)
	}
	os.Stdout.WriteString("up\n")
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		io.WriteString(c, "hello from inside")
		c.Close()
	}
}

func TestDial(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{"DRUMS_TEST_SERVER=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	h, err := Open(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for range 50 {
		c, err := h.Dial(ctx, "127.0.0.1", 5000)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(c)
		c.Close()
		if err != nil || string(b) != "hello from inside" {
			t.Fatalf("read %q, %v", b, err)
		}
	}
	if _, err := h.Dial(ctx, "127.0.0.1", 5001); !errors.Is(err, engine.ErrDead) {
		t.Errorf("dialling a port where nobody listens: %v, want engine.ErrDead", err)
	}
	// Every thread of ours is still in its own namespace.
	mine, _ := os.Readlink("/proc/self/ns/net")
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		if ns, err := os.Readlink("/proc/self/task/" + task.Name() + "/ns/net"); err == nil && ns != mine {
			t.Errorf("thread %s stayed in %s", task.Name(), ns)
		}
	}
}
