package compile

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
)

// What is larger or deeper than a person writes is refused with its place, before CUE reads it.
func TestBoundsOfAFile(t *testing.T) {
	const head = "package locks\n"
	for name, c := range map[string]struct{ text, want string }{
		"size":           {head + "//" + strings.Repeat("x", maxFile), "at most"},
		"lists":          {head + "a: " + strings.Repeat("[", maxNest+1), "deep"},
		"closed lists":   {head + "a: " + strings.Repeat("[", maxNest+1) + strings.Repeat("]", maxNest+1), "deep"},
		"structs":        {head + strings.Repeat("a: {", maxNest+1) + strings.Repeat("}", maxNest+1), "deep"},
		"labels":         {head + strings.Repeat("a: ", maxChain+1) + "1", "more than"},
		"sums":           {head + "a: 1" + strings.Repeat("+1", maxChain+1), "more than"},
		"negations":      {head + "a: " + strings.Repeat("-", maxChain+1) + "1", "more than"},
		"selectors":      {head + "a: b" + strings.Repeat(".b", maxChain+1), "more than"},
		"calls":          {head + "a: b" + strings.Repeat("()", maxChain+1), "more than"},
		"clauses":        {head + "a: [" + strings.Repeat("for x in y ", maxChain+1) + "{x}]", "more than"},
		"interpolations": {head + "a: " + strings.Repeat(`"\(`, maxNest+1), "deep"},
	} {
		dir := repository(t, plainModule)
		write(t, dir, "locks/locks.cue", c.text)
		_, err := Load(Options{Path: filepath.Join(dir, "locks")})
		var problems Problems
		if !errors.As(err, &problems) || !strings.Contains(err.Error(), c.want) || !strings.HasSuffix(problems[0].File, "locks.cue") {
			t.Errorf("%s: %.300v", name, err)
		}
	}
	for kind, plant := range map[string]func(at string) error{
		"fifo":   func(at string) error { return syscall.Mkfifo(at, 0o600) },
		"device": func(at string) error { return syscall.Mknod(at, syscall.S_IFCHR|0o600, 1<<8|5) },
		"huge":   func(at string) error { return errors.Join(os.WriteFile(at, nil, 0o600), os.Truncate(at, 1<<40)) },
	} {
		for _, file := range []string{"locks/locks.cue", "cue.mod/module.cue", "cue.mod/local-module.cue"} {
			dir := repository(t, plainModule)
			at := filepath.Join(dir, file)
			if err := errors.Join(os.RemoveAll(at), plant(at)); err != nil {
				t.Fatal(err)
			}
			for _, path := range []string{"locks", "locks/locks.cue"} {
				if _, err := Load(Options{Path: filepath.Join(dir, path)}); err == nil {
					t.Errorf("a %s as %s was read", kind, file)
				}
			}
		}
	}
}

// A value of many interpolations, fields and elements is no deep one.
func TestWhatIsWithinBounds(t *testing.T) {
	text := "package p\na: \"" + strings.Repeat(`\(b) `, 2*maxChain) + "\"\nl: [" + strings.Repeat("{x: 1 + 2}, ", 2*maxChain) + "]\n" + strings.Repeat("c: d: e: [1]\n", 2*maxChain)
	if err := tooMuch("a.cue", []byte(text)); err != nil {
		t.Error(err)
	}
	manifests, err := filepath.Glob("../../manifests/*/*.cue")
	if err != nil || len(manifests) == 0 {
		t.Fatal("no manifests", err)
	}
	for _, name := range manifests {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := tooMuch(name, text); err != nil {
			t.Error(err)
		}
	}
}

func TestBoundsOfAnEvaluation(t *testing.T) {
	defer func(d time.Duration, m int64) { maxTime, maxMemory = d, m }(maxTime, maxMemory)
	over := make(chan struct{})
	ended := make(chan struct{})
	wait := func() (int, error) {
		defer close(ended)
		big := make([]byte, 64<<20)
		<-over
		runtime.KeepAlive(big)
		return 0, nil
	}
	maxTime = time.Millisecond
	_, err := within(wait)
	close(over)
	<-ended
	if !errors.Is(err, engine.ErrRefused) || !strings.Contains(err.Error(), "longer") {
		t.Errorf("time: %v", err)
	}
	over, ended = make(chan struct{}), make(chan struct{})
	maxTime, maxMemory = time.Hour, 16<<20
	runtime.GC()
	_, err = within(wait)
	close(over)
	<-ended
	if !errors.Is(err, engine.ErrRefused) || !strings.Contains(err.Error(), "memory") {
		t.Errorf("memory: %v", err)
	}
	if _, err := within(func() (int, error) { panic("a fault of CUE's") }); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("panic: %v", err)
	}
}

const bombVariable = "DRUMSBENCH_TEST_BOMB"

// A manifest of a few lines that asks for a milliard of elements is refused, in a
// process of its own, since CUE runs on.
func TestBomb(t *testing.T) {
	if dir := os.Getenv(bombVariable); dir != "" {
		maxTime = time.Second
		_, err := Load(Options{Path: filepath.Join(dir, "locks")})
		fmt.Println("said:", err)
		os.Exit(0)
	}
	dir := repository(t, plainModule)
	write(t, dir, "locks/locks.cue", "package locks\nimport \"list\"\nl: list.Range(0, 1000, 1)\na: [for x in l for y in l for z in l {v: x + y + z}]\n")
	cmd := exec.Command(os.Args[0], "-test.run", "^TestBomb$")
	cmd.Env = append(os.Environ(), bombVariable+"="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "it takes longer") {
		t.Errorf("%v: %.500s", err, out)
	}
}
