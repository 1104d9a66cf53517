// Command drumsbench is the program people run. It is the only place that wires
// engine, steps and arms together; what a command does lies in the file named
// for it, what all of them share in globals.go and output.go. Every command can
// be driven in one process through run, which is how the test scripts do it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/drumsbench/drumsbench/engine"
)

// cli is the command line: the flags of all commands and one field for each
// command, in the order in which --help lists them. Each is a struct with
//
//	Run(ctx context.Context, g *globals) error    what it does
//	Help() string                                 examples, and what its exit codes mean
type cli struct {
	globals

	Vet      vetCmd      `cmd:"" help:"Check manifests and say what is wrong, one line a mistake."`
	Plan     planCmd     `cmd:"" help:"Compile a manifest and print its plan."`
	Register registerCmd `cmd:"" help:"Lay an experiment and its bars down before it runs."`
	Run      runCmd      `cmd:"" help:"Execute a manifest's plan on its arms."`
	Show     showCmd     `cmd:"" help:"Print a table of runs from their records."`
	Compare  compareCmd  `cmd:"" help:"Compare runs whose every fact is known and the same, or say what is missing."`
	Judge    judgeCmd    `cmd:"" help:"Judge the bars of registered experiments from their runs."`
	Ls       lsCmd       `cmd:"" help:"List runs: by manifest, arm, state, date."`
	Review   reviewCmd   `cmd:"" help:"List what of a run waits for a person, and take a decision."`
	Report   reportCmd   `cmd:"" help:"Draw a site from runs: benchmark page, run pages, comparisons."`
	Verify   verifyCmd   `cmd:"" help:"Find what was changed in runs since they were written."`
	Export   exportCmd   `cmd:"" help:"Print a signed statement of a run for other people's tools."`
	Slot     slotCmd     `cmd:"" help:"Work with single slots by hand."`
	Sweep    sweepCmd    `cmd:"" help:"Take away what ended runs left on the host."`
	Doctor   doctorCmd   `cmd:"" help:"Say what this host can do for an arm, and what to do about what it lacks."`
	Probe    probeCmd    `cmd:"" help:"Find out in which layer something is lost."`
	Image    imageCmd    `cmd:"" help:"Build images from recipes and say what an image is."`
	Schema   schemaCmd   `cmd:"" help:"Give a repository of manifests the schema of this program."`
	Version  versionCmd  `cmd:"" help:"Print which program this is."`
}

const description = `DrumsBench measures how desktop environments for computer-use agents are reset.
A manifest in CUE pins the workload; it is compiled into one plan, which runs the same on every arm.

From a manifest to a table, as root:

  drumsbench vet manifests/locks                        is the manifest good?
  drumsbench image build manifests/images/tiny.cue      build and pin the image that it names
  drumsbench plan manifests/locks                       what will be done, step by step
  drumsbench run manifests/locks                        do it; the run's directory keeps everything
  drumsbench show                                       the runs as a table, from their records

Exit codes, the same for every command:

  0  done; a run passed
  1  failed: a gate or the command itself; the message says what, where and what to do
  2  wrong usage
  3  blocked: something that had to be known could not be learnt
  4  a person has to review the run`

// The main thread stays the main goroutine's: a goroutine that enters a slot's
// network namespace and cannot come back ends with its thread, and the main
// thread cannot end (runtime.LockOSThread); it would stay in the slot for ever.
func init() { runtime.LockOSThread() }

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run parses args, runs the command and returns the exit code. It holds no
// state and touches no global but the signal handlers, which it takes back.
func run(args []string, stdout, stderr io.Writer) int {
	c := cli{globals: globals{Stdout: stdout, Stderr: stderr}}
	ctx, stop := withSignals(context.Background(), stderr)
	defer stop()

	command, err := parse(&c, args)
	var done exitCode
	if errors.As(err, &done) { // --help has printed all there is to say
		return int(done)
	}
	if err == nil {
		err = checkFormat(&c.globals, command)
	}
	if err == nil {
		c.Log = newLogger(&c.globals)
		command.BindTo(ctx, (*context.Context)(nil))
		err = command.Run(&c.globals)
	}
	return report(&c.globals, err)
}

// parse fills c from args. The error is an exitCode after --help, else wrong usage.
func parse(c *cli, args []string) (command *kong.Context, err error) {
	defer func() {
		// Kong's way out after --help is a call that must not return.
		if r := recover(); r != nil {
			code, ok := r.(exitCode)
			if !ok {
				panic(r)
			}
			command, err = nil, code
		}
	}()
	parser, err := kong.New(c,
		kong.Name("drumsbench"),
		kong.Description(description),
		kong.Writers(c.Stdout, c.Stderr),
		kong.Exit(func(code int) { panic(exitCode(code)) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
	)
	if err != nil {
		return nil, err // a mistake in our own tags, which every test script meets
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	command, err = parser.Parse(args)
	var wrong *kong.ParseError
	if errors.As(err, &wrong) {
		if err := elsewhere(wrong.Context); err != nil { // the stand-in of a command has none of its flags
			return nil, err
		}
		name := "drumsbench"
		if wrong.Context != nil {
			name = strings.TrimSpace(name + " " + plainCommand(wrong.Context))
		}
		return nil, &engine.Error{Op: "read command line", Hint: "see: " + name + " --help", Err: usage(wrong.Error())}
	}
	return command, err
}

// checkFormat refuses a format that the command does not print.
func checkFormat(g *globals, command *kong.Context) error {
	if g.Output == "table" {
		g.Output = "plain"
	}
	if g.Output == "plain" || g.Output == "json" {
		return nil
	}
	more, ok := command.Selected().Target.Addr().Interface().(interface{ formats() []string })
	if ok && slices.Contains(more.formats(), g.Output) {
		return nil
	}
	wrong := g.Output
	g.Output = "plain"
	return &engine.Error{Op: "read command line", Err: usage(fmt.Sprintf("drumsbench %s prints no %s", plainCommand(command), wrong)), Hint: "name another format with -o: plain or json"}
}

// plainCommand is the command that was recognised, without its arguments.
func plainCommand(c *kong.Context) string {
	var words []string
	for _, p := range c.Path {
		if p.Command != nil {
			words = append(words, p.Command.Name)
		}
	}
	return strings.Join(words, " ")
}

// withSignals returns a context that the first SIGINT or SIGTERM cancels, so
// that what was begun is undone. The second exits at once: the ledger remains
// and sweep finishes. stop takes the handlers back.
func withSignals(parent context.Context, stderr io.Writer) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	quit := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for first := true; ; first = false {
			select {
			case <-quit:
				return
			case s := <-signals:
				if !first {
					os.Exit(codeFailed)
				}
				_, _ = io.WriteString(stderr, "drumsbench: "+s.String()+": undoing what was begun; a second signal exits at once\n")
				cancel(&interrupted{s})
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(quit)
		<-ended
		cancel(nil)
	}
}

// interrupted is the cause of a context that a signal cancelled.
type interrupted struct{ signal os.Signal }

func (e *interrupted) Error() string { return "stopped by signal: " + e.signal.String() }
func (e *interrupted) Unwrap() error { return context.Canceled }
