package wholefile

import (
	"errors"
	"os"
	"path/filepath"
)

// write knows no mode beside read-only, which nobody asks for.
func write(path string, data []byte, _ os.FileMode) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path) // MoveFileEx with MOVEFILE_REPLACE_EXISTING
}
