//go:build unix

package record

import (
	"io/fs"
	"os"
	"syscall"
)

// careful: no link is followed, and nobody is waited for at a FIFO.
const careful = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

// otherNames says whether a file has names beside the one that it was looked up by:
// what is written to it appears elsewhere, too.
func otherNames(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Nlink > 1 && info.Mode().IsRegular()
}

func openCarefully(path string, flag int, mode fs.FileMode) (*os.File, error) {
	return os.OpenFile(path, flag|careful, mode)
}
