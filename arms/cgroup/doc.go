// Package cgroup keeps everything that a run starts inside control groups of
// its own, so that nothing can hide between the intent to start a process and
// the knowledge of its pid, and so that the bounds which a manifest asks for are
// those which the kernel enforces.
//
// Two kinds of group exist, because a hybrid host has its controllers on v1 and
// cgroup.kill and cgroup.freeze on v2 only:
//
//   - an Owner with its Groups lies on the v2 hierarchy, whatever the host's
//     mode. Processes are born inside (CLONE_INTO_CGROUP), are listed, frozen and
//     killed there.
//   - Limits are what the kernel enforces: one v1 group for each controller on
//     legacy and hybrid hosts, one v2 group below the slot's Group on unified
//     hosts. Those of a unified host can be parted for a while, into a group for
//     the tree and one for a tool that freezes it (Part).
//
// What always holds: every group is nested below our own current group of its
// hierarchy, never at an absolute path, because that would leave the container
// we run in, or in the group that an operator has for us (Variable); every group is in the ledger before it is made; a group is removed
// only while its device and inode are those we made; and a value counts only
// once it was read back from the kernel.
package cgroup
