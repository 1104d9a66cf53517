package engine

// Values that steps promise to each other besides Root, Place, Slot, Stopped and Checkpoint.

// Ready says that the readiness rule held.
type Ready struct{}

// Judged says that a gate passed.
type Judged struct{}

// Measured says that a reading was taken.
type Measured struct{}

// Canary is the content that a canary file must have.
type Canary string

// Acted says that the policy has acted.
type Acted struct{}

// Score is a checker's answer, 0 or 1.
type Score float64

// Released says that a resource was taken away and its absence read back.
type Released struct{}
