// Command hostvm boots an operator's host as a virtual machine: Debian with
// systemd as init and cgroup v2 only, of the recipe manifests/images/host. It
// exists because the machines that the project is built on have neither
// systemd, nor cgroup v2, nor nbd, nor CAP_SYS_RESOURCE, and its users have all
// of them. The same program is the agent inside.
//
// What always holds: the machine writes to disks of its own and never to an
// image; nobody but this host's loopback reaches it, and it reaches nobody; the
// serial console is kept as evidence; a script's exit code is the script's own.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
)

const usage = `usage: hostvm up | down | shell 'COMMAND' | run SCRIPT | put FILE PATH | get FOLDER FILE.tar | agent ADDRESS

  up     boots a machine, installs the programs of the state directory in it, and leaves it running
  shell  runs a command of bash in it; boots a machine for the one call where none is up
  run    the same with a file
  put    copies a file into the machine that is up, with its mode; get brings a folder as a tar file
  down   ends the machine

What the command says goes to standard output, and its exit code is this one's; 125 is a failure of hostvm itself.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	code, err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "hostvm: %v\n", err)
		var e *engine.Error
		if errors.As(err, &e) {
			for _, line := range [][2]string{{"remedy", e.Hint}, {"log", e.Log}} {
				if line[1] != "" {
					fmt.Fprintf(os.Stderr, "  %s: %s\n", line[0], line[1])
				}
			}
		}
	}
	os.Exit(code)
}

// ownFailure is the exit code where no script's is known.
const ownFailure = 125

func run(ctx context.Context, args []string, out io.Writer) (int, error) {
	of := func(err error) (int, error) {
		if err != nil {
			return ownFailure, err
		}
		return 0, nil
	}
	switch {
	case len(args) == 1 && args[0] == "up":
		m, err := Up(ctx, Options{State: stateDir(), Page: "docs/operating.md", Stay: true, Log: os.Stderr})
		if err == nil {
			err = m.keep()
		}
		return of(err)
	case len(args) == 1 && args[0] == "down":
		m, err := kept(stateDir())
		if err == nil && m != nil {
			err = m.Close()
		}
		return of(err)
	case len(args) == 2 && args[0] == "shell":
		return script(ctx, args[1], out)
	case len(args) == 2 && args[0] == "run":
		text, err := os.ReadFile(args[1])
		if err != nil {
			return of(err)
		}
		return script(ctx, string(text), out)
	case len(args) == 3 && (args[0] == "put" || args[0] == "get"):
		m, err := kept(stateDir())
		if err == nil && m == nil {
			err = errors.New("no machine is up")
		}
		if err != nil {
			return of(err)
		}
		if args[0] == "put" {
			return of(m.PutFile(ctx, args[1], args[2]))
		}
		return of(m.getFile(ctx, args[1], args[2]))
	case len(args) == 2 && args[0] == "agent":
		return of(serve(ctx, args[1]))
	}
	fmt.Fprint(os.Stderr, usage)
	return 2, nil
}

// script runs text in the machine that is up, or in one of its own.
func script(ctx context.Context, text string, out io.Writer) (code int, err error) {
	m, err := kept(stateDir())
	if err != nil {
		return ownFailure, err
	}
	if m == nil {
		if m, err = Up(ctx, Options{State: stateDir(), Page: "docs/operating.md", Log: os.Stderr}); err != nil {
			return ownFailure, err
		}
		defer func() {
			if cerr := m.Close(); cerr != nil {
				code, err = ownFailure, errors.Join(err, cerr)
			}
		}()
	}
	code, err = m.Run(ctx, m.Environment()+text, out)
	if err != nil {
		return ownFailure, err
	}
	return code, nil
}

func stateDir() string {
	if s := os.Getenv("DRUMSBENCH_STATE"); s != "" {
		return strings.TrimRight(s, "/")
	}
	return "/var/lib/drumsbench"
}
