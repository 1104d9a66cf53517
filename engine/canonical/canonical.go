// Package canonical is the one place where a value becomes bytes to be hashed:
// JSON by RFC 8785, in which equal values have equal bytes whatever the order
// and spacing they were written with. Its numbers are doubles, so 64-bit values
// must travel as strings.
package canonical

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/gowebpki/jcs"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// JSON returns v as canonical JSON, without a line feed at its end. v is
// anything that encoding/json can marshal; a json.RawMessage is brought into
// canonical form.
func JSON(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("marshal %T: %w", v, err)
	}
	data, err = jcs.Transform(data)
	if err != nil {
		return nil, fmt.Errorf("bring %T into canonical form: %w", v, err)
	}
	return data, nil
}

// Digest is the SHA-256 of v's canonical JSON.
func Digest(v any) (bench.SHA256, error) {
	data, err := JSON(v)
	if err != nil {
		return "", err
	}
	return Sum(data), nil
}

// Sum is the SHA-256 of data as it is.
func Sum(data []byte) bench.SHA256 {
	sum := sha256.Sum256(data)
	return bench.SHA256(hex.EncodeToString(sum[:]))
}
