package engine

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

// Released says that a resource was taken away and its absence read back.
type Released struct{}
