package proto

import (
	"time"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// PathCheck is ours too. It runs a checker, in one exchange, from a copy that comes with the
// request, and says what the run stood on:
//
//	POST /check  CheckRequest -> CheckResponse; statuses as of /execute, and 500 where what the
//	       checker stands on could not be read: nothing was run then
const PathCheck = "/check"

// ProgramPlace stands for the path of the checker's copy, in the words of a request and in the
// paths of an answer: the path itself is random and new each time.
const ProgramPlace = "{program}"

// MaxProgram bounds the copy, in bytes.
const MaxProgram = 2 << 20

// CheckTime bounds what /check does beside running the checker: reading what it stands on, twice.
const CheckTime = 45 * time.Second

// CheckRequest asks for one run of a checker.
type CheckRequest struct {
	// Exec is the program and its arguments. Exec[0] is looked up in PATH once.
	Exec []string `json:"exec"`
	// Name and Program are the copy's file name and content; both empty where there is none. guestd
	// makes a folder that did not exist, owned by root, for everybody to read, puts the copy in it, and takes
	// both away before it answers.
	Name    string `json:"name,omitempty"`
	Program []byte `json:"program,omitempty"`
	// Paths are what nobody may change, beside what Exec itself needs; of a folder everything below it.
	Paths []string `json:"paths,omitempty"`
	// Timeout in seconds.
	Timeout float64 `json:"timeout"`
}

// CheckResponse answers a CheckRequest.
type CheckResponse struct {
	ExecuteResponse
	// Resolved is the file that was run; empty where Exec[0] is not in the guest, and nothing was run.
	Resolved string `json:"resolved,omitempty"`
	// Server is the digest of the program that answers, read again for this answer.
	Server bench.SHA256 `json:"server"`
	// Before is what the run stood on, read before it; sorted by path.
	Before []ClosureEntry `json:"before"`
	// After is the same once it had ended; absent where it is as Before.
	After []ClosureEntry `json:"after,omitempty"`
}

// ClosureEntry is one path that a program's outcome depends on.
type ClosureEntry struct {
	Path string `json:"path"`
	// Real is the path without symbolic links, where that is another one.
	Real string `json:"real,omitempty"`
	// Kind is file, directory, other, or absent: nothing is there, and that matters too.
	Kind string `json:"kind"`
	// Mode is the permission bits in octal; absent where nothing is there.
	Mode   string       `json:"mode,omitempty"`
	Sha256 bench.SHA256 `json:"sha256,omitempty"`
	// Named: it is here only because a shell's text has its name as a word.
	Named bool `json:"named,omitempty"`
}

// Kinds of a ClosureEntry.
const (
	EntryFile      = "file"
	EntryDirectory = "directory"
	EntryOther     = "other"
	EntryAbsent    = "absent"
)
