// Package guest talks to the server inside a slot. The language of the two is
// package proto; this is the client.
//
// What always holds: nothing that a guest sends is trusted. Each answer has a
// size limit, each exchange a deadline, each connection carries one exchange, and
// a call succeeds only after the server's end of the connection was seen to be
// closed, so that asking a slot does not spoil its dump.
package guest

import "github.com/drumsbench/drumsbench/engine/guest/proto"

// What callers see of the language.
type (
	// Probe is the guest's own view of its slot.
	Probe = proto.Probe
	// ServiceState is one service of the slot.
	ServiceState = proto.ServiceState
	// Screen is the screen as its X server describes it.
	Screen = proto.Screen
	// Window is one mapped window.
	Window = proto.Window
	// Phase of a slot as its first process sees it.
	Phase = proto.Phase
)

// The phases. Failed is final: a service ended, or one could not be started.
const (
	PhaseStarting = proto.PhaseStarting
	PhaseRunning  = proto.PhaseRunning
	PhaseFailed   = proto.PhaseFailed
)

const (
	// Version of the probe. A client refuses an answer of another version.
	Version = proto.Version
	// ConfigVariable names the environment variable that hands a slot's first process its bench.Guest as JSON.
	ConfigVariable = proto.ConfigVariable
	// LogDir is where guestd keeps what its services print: NAME.log each.
	LogDir = proto.LogDir
	// OutputLimit is how much of each of a program's outputs guestd keeps, in bytes.
	OutputLimit = proto.OutputLimit
)
