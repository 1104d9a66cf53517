// Package overlay makes a slot's root file system: a read-only image, the
// layers that earlier checkpoints left, and one writable upper directory on top.
// A reset is cheap because a checkpoint's upper is sealed as a layer and the
// next slot starts with an empty one.
//
// What always holds: a layer or image is never written; every mount has the same
// options at provision and at restore, and they are read back, because the
// kernel drops some of them with a line in its log only; a path that came out of
// a slot is resolved inside the slot's root or not at all; and a state manifest
// says the same of the same merged view, whichever layers it is spread over.
package overlay
