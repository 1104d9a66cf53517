package proto

import "github.com/drumsbench/drumsbench/schemas/bench"

// MachineFile is where a virtual machine's initial ramdisk holds its Machine as JSON.
const MachineFile = "/drums/guest.json"

// MachineVariable names the environment variable that holds the Machine when the
// ramdisk's guestd starts the image's. It is only there in a virtual machine, and
// the process takes it out of its environment.
const MachineVariable = "DRUMS_MACHINE"

// FailurePrefix begins the line on the serial console that says why a boot went no further.
const FailurePrefix = "guestd: boot failed: "

// Machine is what one virtual machine is told when it boots.
type Machine struct {
	// Guest is what a slot's first process gets in ConfigVariable on every arm.
	Guest    bench.Guest `json:"guest"`
	Hostname string      `json:"hostname"`
	// Addresses of eth0 in CIDR notation, IPv4, the one that is forwarded from first; none for a machine without a network card.
	Addresses []string `json:"addresses,omitempty"`
	// Gateway of the default route; empty for none.
	Gateway string `json:"gateway,omitempty"`
	// Forward are the TCP ports of the guest's loopback that are reachable at the first address under the same number.
	Forward []int `json:"forward,omitempty"`
	// Pids limits the guest's tasks, kernel threads excluded; 0 for no limit.
	Pids int64 `json:"pids,omitempty"`
}
