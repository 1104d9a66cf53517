// Package hosttool is what arms know of a tool's file on the host. It exists so that
// a tool is the same thing on every arm: its bytes, never its name or its version.
//
// Always holds: a digest is of the bytes as they are read now; a pin that they do
// not have is engine.ErrRefused with both.
package hosttool

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Digest is the SHA-256 of a file, in hex.
func Digest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("hash %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Pinned requires of the tool of this name, whose file lies at path and has the
// digest have, that it is the one that a manifest pins; an empty pin names none.
// hint is what to do about another one.
func Pinned(name, path, have string, pin bench.SHA256, hint string) error {
	if pin == "" || string(pin) == have {
		return nil
	}
	return &engine.Error{
		Op: "check " + name, Err: fmt.Errorf("%w: %s has digest %s, the manifest asks for %s", engine.ErrRefused, path, have, pin), Hint: hint,
		Findings: []bench.Finding{{Verdict: engine.Fail, Subject: name, Text: "is not the one that the manifest pins", Want: string(pin), Have: have, Hint: hint}},
	}
}
