package procfs

import (
	"errors"
	"os"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
)

// Whoever counts as the kernel's is in the first pid namespace, and this program is not among them.
func TestKernelThreads(t *testing.T) {
	threads, err := kernelThreads()
	if err != nil {
		t.Fatal(err)
	}
	if threads[os.Getpid()] || threads[os.Getppid()] {
		t.Errorf("this program is a kernel thread: %v", threads)
	}
	if len(threads) == 0 { // the first namespace is not ours: number 2 is some program
		return
	}
	first, err := NamespaceOf(kthreadd, "pid")
	if err != nil {
		t.Fatal(err)
	}
	for pid := range threads {
		ns, err := NamespaceOf(pid, "pid")
		if errors.Is(err, engine.ErrDead) {
			continue
		}
		if err != nil || ns != first {
			t.Errorf("pid %d is in pid namespace %v, not in %v: %v", pid, ns, first, err)
		}
	}
}
