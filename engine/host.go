package engine

import (
	"context"
	"time"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// HostProgram is a program of somebody else's that acts on a slot from the host.
type HostProgram struct {
	// Name of the slot that it acts on; no two of a name are loaded at a time.
	Name string
	// Exec is the program and its arguments. A program that is no absolute path lies in Dir.
	Exec []string
	Dir  string
	// SHA256 is what the program's file must be.
	SHA256 bench.SHA256
}

// HostRunner runs programs on the host. Safe for concurrent use.
type HostRunner interface {
	// Load takes a copy of the program's file and compares the copy with the pin: it
	// is the copy that Run starts, so that no swap can slip in between. ErrRefused
	// where it is another file, with its digest; nothing was started or left then.
	Load(ctx context.Context, p HostProgram) (HostProcess, error)
}

// HostProcess is a program that was loaded.
type HostProcess interface {
	// Run starts the program, once, with env, PATH and nothing else of the engine's
	// own: no other variable, descriptor or standard input, and an empty folder as
	// its working directory. It returns when the program has ended; by then every
	// process that it left has been ended too, and read back to be. When ctx is
	// done, the whole tree is ended at once: the result is what there was until then
	// and the error wraps ctx's cause.
	//
	// However the program ended by itself is a result, not an error.
	Run(ctx context.Context, env []string) (HostResult, error)
	// Release ends whatever is left of the tree and takes the copy and the folder away. Idempotent.
	Release(ctx context.Context) error
}

// HostResult is how a program on the host ended.
type HostResult struct {
	// Exit status, or minus the number of the signal that ended it.
	Exit int
	// Elapsed from the start until no process was left.
	Elapsed time.Duration
	// Stdout and Stderr as far as they were kept; Truncated: there was more.
	Stdout, Stderr []byte
	Truncated      bool
	// Files are what lay in the working directory at the end, by name: regular files, as far as they were kept.
	Files []HostFile
	// FilesLeftOut counts what was not kept: folders, links, and what was too much.
	FilesLeftOut int
	// Ended counts the processes that were left when the program itself had ended, or when ctx was done.
	Ended int
}

// HostFile is a file that a program left.
type HostFile struct {
	Name string
	Data []byte
}
