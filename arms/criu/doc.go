// Package criu is what the arms share to drive CRIU: which program, asked how,
// with what answer, and what its images say.
//
// It exists because the tools' own words are no proof. CRIU returns 0 and has
// lost a lock, its log is a text file that the next call overwrites, its
// configuration files change a dump in silence, and the client of go-criu drops
// the pre-resume notification, has no deadline and cuts long answers. What
// always holds here:
//
//   - No file or variable of the host decides anything: the program is started
//     with --no-default-config and with [Env], which is built from nothing.
//   - A call ends when its context ends. Then CRIU, its process group and
//     whatever it started are dead, and what was a child of ours is reaped.
//   - A failed [Dump] leaves the tree running, as far as CRIU keeps its word; a
//     failed [Restore] leaves nothing of the tree.
//   - Every error is an *engine.Error that names the log; its cause is a
//     [*Failure] with CRIU's own lines and, for known kinds, a remedy.
//   - Images are read strictly: a short or damaged image is an error, never an
//     empty answer.
//
// # When CRIU asks
//
// Measured with CRIU 4.2.1, network lock skipped, own network namespace:
//
//	operation  script                  tasks                        a failing answer
//	dump       pre-dump                run                          aborts, the tree runs on
//	           network-lock            all seized, in tracing stop  aborts, the tree runs on
//	           query-ext-files         the same                     aborts, the tree runs on
//	           post-dump               the same, images complete    aborts, the tree runs on
//	           network-unlock          only when the dump failed    ignored
//	restore    pre-restore             none                         aborts, nothing is left
//	           setup-namespaces        the root task, in syscalls   aborts, nothing is left
//	           post-setup-namespaces   the same                     aborts, nothing is left
//	           post-restore            all, in the restorer         aborts, nothing is left
//	           network-unlock          the same                     ignored
//	           pre-resume              all, in tracing stop         ignored
//	           post-resume             run, or stop if asked to     ignored
//
// Where CRIU ignores the answer this package does not: the call fails, and
// [Restore] ends the tree.
package criu
