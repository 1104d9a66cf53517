// Package registers has a stopped thread of another process make system calls:
// what the processor's registers must hold for one, and what it returned.
//
// Always holds: nothing here stops, continues or forgets a thread; whoever does
// puts its own registers back before it runs on.
package registers

// RedZone is what lies below the stack pointer and is still in use, in bytes
// (System V ABI for amd64; more than arm64 needs).
const RedZone = 128
