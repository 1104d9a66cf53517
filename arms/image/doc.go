// Package image makes the disk images that slots start from, and mounts them
// read-only on the host.
//
// It exists because everything that is measured starts from an image: if the
// bytes below two slots could differ without a word, no comparison would hold.
// So these things are always true:
//
//   - A file is compared with its pin before anything parses it, and everything
//     after that (qemu-img, the storage daemon, the loop device) works on the
//     descriptor that was hashed, not on the path.
//   - A digest that was not computed anew says so. It is taken over only if
//     device, inode, size, mtime and ctime are those of the time it was computed.
//   - An image stands alone: one that has a backing file or an external data
//     file is refused, since nobody pinned the rest of the chain.
//   - Whatever is made on the host is in the ledger before it is made, and is
//     called gone only after its absence was read back.
//   - A build mounts nothing, and two builds from one package set give the same
//     bytes.
package image
