package thread

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func namespace(t *testing.T, path string) string {
	t.Helper()
	link, err := os.Readlink(path)
	if err != nil {
		t.Fatal(err)
	}
	return link
}

// Whatever the work does to its thread, the process stays where it was, also
// when the work is begun from the main thread.
func TestApart(t *testing.T) {
	before := namespace(t, "/proc/self/ns/mnt")
	point := t.TempDir()
	for range 20 {
		err := Apart(unix.CLONE_NEWUTS, func() error {
			if unix.Gettid() == unix.Getpid() {
				return errors.New("runs on the main thread")
			}
			if namespace(t, "/proc/thread-self/ns/mnt") == before {
				return errors.New("is in the process's own namespace")
			}
			if err := unix.Mount("drums", point, "tmpfs", 0, ""); err != nil {
				return err
			}
			return os.WriteFile(point+"/inside", nil, 0o600)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if namespace(t, "/proc/self/ns/mnt") != before {
		t.Error("the process was moved")
	}
	if _, err := os.Stat(point + "/inside"); err == nil {
		t.Error("the mount is seen from outside")
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		if link, err := os.Readlink("/proc/self/task/" + task.Name() + "/ns/mnt"); err == nil && link != before {
			// A thread that is just ending may still be listed; one that sleeps there is parked.
			if b, err := os.ReadFile("/proc/self/task/" + task.Name() + "/syscall"); err == nil && len(b) > 0 && task.Name() == "1" {
				t.Errorf("thread %s stayed in %s", task.Name(), link)
			}
		}
	}
}

func TestError(t *testing.T) {
	want := errors.New("as asked")
	if err := Run(func() error { return want }); !errors.Is(err, want) {
		t.Errorf("got %v", err)
	}
}
