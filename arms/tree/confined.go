package tree

import (
	"strings"

	"github.com/drumsbench/drumsbench/arms/confine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Confined is the declared difference of arms whose slots share the host's kernel:
// their root user has less than that of a machine.
func Confined() bench.Difference {
	return bench.Difference{Name: "confinement", Text: "the slot's root user keeps " + strings.Join(confine.KeptNames(), ", ") +
		"; it opens the usual character devices and no other, and cannot write " + strings.Join(confine.ReadOnlyPaths(), ", ") + ". Setuid programs work. Memory protection keys are refused as by a processor without them, since CRIU brings none back; on the drums arm no other system call is filtered"}
}
