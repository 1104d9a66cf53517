// Package confine is what keeps the root user of a slot from the host where a slot
// shares the host's kernel: the capabilities that a slot keeps, the devices that it
// can open, and the places of /proc that it cannot write.
//
// Always holds: the lists are data, each entry with its reason, and the same on
// every arm that uses them; no instruction of the image runs before they are in
// force; what the kernel then enforces is read back from the host's side, for each
// task, after a restore as after a start.
package confine
