// Package canonical is the one place where a value becomes bytes to be hashed:
// JSON by RFC 8785, in which equal values have equal bytes whatever the order
// and spacing they were written with. What always holds: two different values
// never get the same bytes. RFC 8785's numbers are doubles and JSON's text is
// UTF-8, so a number beyond 2^53 that no double is written as, and text that is no UTF-8 are refused
// here, instead of being rounded or replaced; both travel as encoded text.
package canonical

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
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
// of bytes that are no UTF-8 (a real U+FFFD is written as itself).
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

// exact says whether a number survives as a double. A fraction is one by RFC 8785, and
// so is any whole number up to 2^53; beyond, what the double is written as has to have
// the value of the number, and then no other whole number survives as that double.
func exact(number string) bool {
	f, err := strconv.ParseFloat(number, 64)
	return err == nil && (math.Abs(f) < 1<<53 || decimal(number) == decimal(strconv.FormatFloat(f, 'e', -1, 64)))
}

// decimal is a number as digits without zeros at either end, and the power of ten
// they are multiplied with. An exponent that is no int is none of a double's.
func decimal(number string) string {
	mantissa, power, _ := strings.Cut(strings.ToLower(number), "e")
	exponent, _ := strconv.Atoi(power)
	sign := ""
	if strings.HasPrefix(mantissa, "-") {
		sign, mantissa = "-", mantissa[1:]
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	exponent -= len(fraction)
	short := strings.TrimRight(digits, "0")
	if short == "" {
		return "0"
	}
	return fmt.Sprintf("%s%se%d", sign, short, exponent+len(digits)-len(short))
}
