// Package wholefile writes files whole. It exists because what reads runs also
// runs where the library for it does not (Windows).
//
// Always holds: whoever opens the file meanwhile, or after a crash, has the old
// content or the new one, never a part.
package wholefile

import "os"

// Write writes data to a file beside path, syncs it and lets it take the name. It
// is not idempotent: each call makes a new file. A link at path is replaced, not followed.
func Write(path string, data []byte, mode os.FileMode) error { return write(path, data, mode) }
