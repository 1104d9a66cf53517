// Package canonical is the one place where a value becomes bytes to be hashed:
// JSON by RFC 8785, in which equal values have equal bytes whatever the order
// and spacing they were written with. What always holds: two different values
// never get the same bytes. RFC 8785's numbers are doubles and JSON's text is
// UTF-8, so a whole number beyond 2^53 and text that is no UTF-8 are refused
// here, instead of being rounded or replaced; both travel as encoded text.
package canonical

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

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
	if err := lossless(data); err != nil {
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

// lossless refuses what would lose a difference on the way. It looks at the
// bytes that encoding/json wrote: the escape \ufffd is what it puts in the place
// of bytes that are no UTF-8 (a real U+FFFD is written as itself), and a whole
// number has no point and no exponent.
func lossless(data []byte) error {
	for i := 0; i < len(data); {
		switch c := data[i]; {
		case c == '"':
			for i++; data[i] != '"'; i++ {
				if data[i] != '\\' {
					continue
				}
				if strings.HasPrefix(string(data[i:min(i+6, len(data))]), `\ufffd`) {
					return errors.New("text that is no UTF-8")
				}
				i++
			}
			i++
		case c == '-' || c >= '0' && c <= '9':
			start := i
			for i < len(data) && strings.IndexByte("+-.eE0123456789", data[i]) >= 0 {
				i++
			}
			if number := string(data[start:i]); !exact(number) {
				return fmt.Errorf("%s is beyond what a double holds: send it as text", number)
			}
		default:
			i++
		}
	}
	return nil
}

// exact says whether a number survives as a double: whole ones do up to 2^53.
func exact(number string) bool {
	if strings.ContainsAny(number, ".eE") {
		return true
	}
	digits := strings.TrimPrefix(number, "-")
	const limit = "9007199254740992"
	return len(digits) < len(limit) || (len(digits) == len(limit) && digits <= limit)
}
