package compile

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// checkerRules checks what a manifest says of its checker; dir is the manifest's folder.
//
//	checker.program       lies beside the manifest and is the pinned file; exec has "{program}"
//	checker.exec          has "{program}" only with a program
//	success, failure      neither is 126 or 127: a shell says so where it could not run a program
//	checker.files         none of them may change by checker.mayChange
func checkerRules(dir string, c bench.Checker) Problems {
	var r rules
	placed := slices.ContainsFunc(c.Exec, func(word string) bool { return strings.Contains(word, proto.ProgramPlace) })
	switch {
	case c.Program != nil && !placed:
		r.add("checker.exec", "program is given and exec does not run it", fmt.Sprintf("write %q where its path is to stand", proto.ProgramPlace))
	case c.Program == nil && placed:
		r.add("checker.exec", fmt.Sprintf("%s stands for a program, and there is none", proto.ProgramPlace), `name one: checker: program: {file: "check.py", sha256: "…"}`)
	}
	if c.Program != nil {
		if _, err := engine.ReadPinned(dir, *c.Program, proto.MaxProgram); err != nil {
			var e *engine.Error
			hint := ""
			if errors.As(err, &e) {
				err, hint = e.Err, e.Hint
			}
			r.add("checker.program", fmt.Sprintf("%s: %v", c.Program.File, err), hint)
		}
	}
	for name, exit := range map[string]int64{"checker.failure": c.Failure.Exit, "checker.success": c.Success.Exit} {
		if exit == 126 || exit == 127 {
			r.add(name+".exit", fmt.Sprintf("%d is what a shell exits with where it could not run a program", exit), "take another status")
		}
	}
	for i, f := range c.Files {
		if slices.Contains(c.MayChange, f) {
			r.add(fmt.Sprintf("checker.files[%d]", i), fmt.Sprintf("%s is also in mayChange", f), "keep one of them")
		}
	}
	return r.problems
}
