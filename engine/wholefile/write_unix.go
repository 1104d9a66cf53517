//go:build !windows

package wholefile

import (
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

func write(path string, data []byte, mode os.FileMode) error {
	// Without a folder the library tries the one for temporary files, which is on another file system.
	return renameio.WriteFile(path, data, mode, renameio.WithTempDir(filepath.Dir(path)))
}
