package engine

import "time"

// Values that steps promise to each other besides Root, Place, Slot, Stopped and Checkpoint.

// Ready says that the readiness rule held.
type Ready struct{}

// Judged says that a gate passed.
type Judged struct{}

// Measured says that a reading was taken.
type Measured struct{}

// Inspected says that the guest was asked what it is; what it could not say is unknown in the receipt.
type Inspected struct{}

// Canary is the content that a canary file must have.
type Canary string

// Acted says that the policy has acted.
type Acted struct{}

// Score is a checker's answer, and what it was had from.
type Score struct {
	// Value is 0 or 1.
	Value float64
	// Closure is what the checker stands on in the guest, by path: a line for each that changes when the file does.
	Closure map[string]string
}

// Witness is what the witness commands of a branching task printed, one text a command.
type Witness []string

// Identity is what makes a slot one of its own, by name: "" is a thing that the slot does not have. Residue are
// things that are known to be the same in every slot from one checkpoint. Clock is by how much the slot's clock is
// ahead of the host's at least, or behind where it is below 0: what the exchange itself took is in its favour.
type Identity struct {
	Slot           string
	Parts, Residue map[string]Reading[string]
	Clock          Reading[time.Duration]
}

// Audited is what slots that run at the same time share of the host's kernel; what they share by their nature, such
// as /dev/null, included.
type Audited []Shared

// Shared is one object that two slots hold.
type Shared struct {
	Kind ObjectKind
	ID   string
	// Slots and holders, in the order of the slots.
	Slots, Holders []string
}

// Released says that a resource was taken away and its absence read back.
type Released struct{}
