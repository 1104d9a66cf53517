package proto

// PathSystem is the probe with System in it, which takes reading files.
const PathSystem = PathProbe + "?" + SystemQuery

// SystemQuery is the parameter of PathProbe that asks for System.
const SystemQuery = "system"

// MaxReading is how long a Reading's value is at most, in bytes; a longer one is unknown.
const MaxReading = 512

// System is what the slot's software is, as the slot itself reads it: what two
// slots have to have in common if their numbers are to be compared.
type System struct {
	// OS is PRETTY_NAME of os-release(5).
	OS Reading `json:"os"`
	// Kernel and Machine are uname(2)'s release and machine.
	Kernel  Reading `json:"kernel"`
	Machine Reading `json:"machine"`
	// Packages is "N packages, sha256 DIGEST" of the sorted lines "NAME ARCHITECTURE
	// VERSION" of the installed ones, each with a line feed. Without a package
	// database it is unknown: nothing else says which programs a guest has.
	Packages Reading `json:"packages"`
}

// Reading is known with its source, or unknown with the reason.
type Reading struct {
	Value   string `json:"value,omitempty"`
	Source  string `json:"source,omitempty"`
	Unknown string `json:"unknown,omitempty"`
}
