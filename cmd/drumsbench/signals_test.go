//go:build linux && !elsewhere

package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// waiter is a program for TestSignals: it undoes nothing and never ends by itself.
func waiter() {
	ctx, stop := withSignals(context.Background(), os.Stderr)
	defer stop()
	fmt.Println("ready")
	<-ctx.Done()
	fmt.Println(context.Cause(ctx))
	time.Sleep(time.Minute)
}

// The first signal cancels, the second exits at once.
func TestSignals(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			path, err := exec.LookPath("waiter")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, path)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			for _, want := range []string{"ready", "stopped by signal"} {
				if !lines.Scan() || !strings.HasPrefix(lines.Text(), want) {
					t.Fatalf("have %q want %q", lines.Text(), want)
				}
				if err := cmd.Process.Signal(signal); err != nil {
					t.Fatal(err)
				}
			}
			_ = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != codeFailed {
				t.Errorf("exit code %d", code)
			}
		})
	}
}
