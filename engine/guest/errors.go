package guest

import (
	"errors"
	"fmt"

	"github.com/drumsbench/drumsbench/engine"
)

// Sentinels of the client. Beside them stand engine.ErrDead (nobody listens, or
// the connection broke before the answer was whole), engine.ErrDeadline (the time
// of the exchange was up), fs.ErrNotExist (no such file in the guest) and the
// errors of the context and of the dialler.
var (
	// ErrTooLarge: the answer is larger than the limit for it.
	ErrTooLarge = errors.New("answer is too large")
	// ErrProtocol: the server said something that the protocol does not allow.
	ErrProtocol = errors.New("guest protocol violated")
	// ErrExecute: the server is well, and answered that it could not run the program.
	ErrExecute = errors.New("the guest could not run the program")
	// ErrNoScreen: the server is well, and answered that it has no picture of a screen.
	ErrNoScreen = errors.New("the guest has no picture of its screen")
	// ErrMachine: the server is well, and answered that it could not do to its machine what was asked for.
	ErrMachine = errors.New("the guest could not change its machine")
	// ErrFailed: the server is well, and answered that its slot is failed. It is an engine.ErrDead too.
	ErrFailed = fmt.Errorf("slot is failed: %w", engine.ErrDead)
)
