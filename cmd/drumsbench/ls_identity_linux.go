package main

import (
	"io/fs"
	"syscall"
)

// identityOf is the stat identity of a file, which stands for its content.
func identityOf(info fs.FileInfo) indexedRun {
	x := indexedRun{Size: info.Size(), Mtime: info.ModTime().UnixNano()}
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		x.Dev, x.Ino, x.Ctime = uint64(s.Dev), s.Ino, s.Ctim.Nano() //nolint:unconvert // not the same type everywhere
	}
	return x
}
