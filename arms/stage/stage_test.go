package stage

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func init() {
	Register("fail", func(c string) error { return errors.New("as asked: " + c) })
	Register("true", func(string) error { return unix.Exec("/bin/true", []string{"true"}, nil) })
	Register("fds", func(string) error {
		if err := CloseOnExec(4); err != nil {
			return err
		}
		return unix.Exec("/bin/ls", []string{"ls", "/proc/self/fd"}, nil)
	})
	Register("hang", func(string) error { time.Sleep(time.Hour); return nil })
}

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

func start(t *testing.T, name string, extra ...*os.File) (*exec.Cmd, *Status, *strings.Builder) {
	t.Helper()
	cmd, err := Command(name, "x")
	if err != nil {
		t.Fatal(err)
	}
	out := &strings.Builder{}
	cmd.Stdout = out
	cmd.ExtraFiles = extra
	s, err := AddStatus(cmd)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, s, out
}

func TestFailureIsTold(t *testing.T) {
	for name, want := range map[string]string{"fail": "stage fail: as asked: x", "absent": `no stage named "absent"`} {
		cmd, s, _ := start(t, name)
		if err := s.Wait(context.Background()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", name, err, want)
		}
		if cmd.Wait() == nil {
			t.Errorf("%s: exited with 0", name)
		}
	}
}

func TestBecomesProgram(t *testing.T) {
	cmd, s, _ := start(t, "true")
	if err := s.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
}

func TestStatusPipeDoesNotReachTheProgram(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd, s, out := start(t, "fds", f)
	if err := s.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	// 0 1 2, the handed-over 3, and ls's own 4.
	if got := strings.Fields(out.String()); strings.Join(got, " ") != "0 1 2 3 4" {
		t.Errorf("descriptors %v", got)
	}
}

func TestWaitHeedsDeadline(t *testing.T) {
	cmd, s, _ := start(t, "hang")
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := s.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	cmd.Process.Kill()
	cmd.Wait()
}
