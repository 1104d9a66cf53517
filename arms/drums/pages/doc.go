// Package pages fills the private anonymous memory of restored slots while they run: a server of our own stands
// where CRIU has its lazy-pages daemon, which pushes everything in the end and so saves nothing.
//
// CRIU hands over a userfaultfd for each task before it lets go of it (criu/uffd.c). The server pushes the pages of a
// recorded working set from a mapping of the images, serves every other page when it is touched, and never touches
// the rest. One server, a process of its own, serves all slots of a run.
//
// Always holds: a page that the images hold is never read as zeros. The kernel fills missing pages with zeros once the
// last descriptor of a userfaultfd is closed, so the engine keeps a duplicate of each: where the server ends, the slot
// is killed before they are closed ([ErrLost]). Where the engine ends, the server kills the slots before it ends
// itself. A tree is dumped only after all of its pages are there and the kernel watches none of its mappings any more.
//
// In the server one goroutine owns a slot: it reads an event, deals with it and only then reads the next or copies a
// page, so what it knows of a task's mappings is what the kernel had when it allowed the copy.
package pages
