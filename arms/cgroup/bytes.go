package cgroup

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// unlimited is how engine.Limits says that there is no bound.
const unlimited = -1

var pageSize = int64(os.Getpagesize())

// parseBytes is exact about #Bytes of the schema: whole numbers with a binary
// unit, or "0". "4GB" is an error, not 4 GiB.
func parseBytes(b bench.Bytes) (int64, error) {
	if b == "0" {
		return 0, nil
	}
	for unit, shift := range map[string]uint{"KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40} {
		digits, ok := strings.CutSuffix(string(b), unit)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 63)
		if err != nil || n == 0 || digits[0] == '0' || digits[0] == '+' || n > math.MaxInt64>>shift {
			break
		}
		return int64(n) << shift, nil
	}
	return 0, fmt.Errorf("%w: size %q is not like 512MiB, 1GiB or 0", engine.ErrUsage, b)
}
