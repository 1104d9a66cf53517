package engine

// Facts of what a run stores, in bytes of blocks: of the mount step, the image as
// its pinned file has it; of the step that dumps or opens it, the checkpoint with
// its layers; of each evaluation after an act, what the slot's own layer or disk takes.
const (
	FactImageStorage      = "storage.image"
	FactCheckpointStorage = "storage.checkpoint"
	FactSlotStorage       = "storage.slot"
)
