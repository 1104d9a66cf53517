package procfs

import (
	"errors"
	"fmt"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
)

const rollupText = `558ecb42c000-7fff0f2a5000 ---p 00000000 00:00 0                          [rollup]
Rss:                1780 kB
Pss:                 311 kB
Pss_Dirty:           112 kB
Private_Clean:        40 kB
Private_Dirty:       112 kB
Private_Hugetlb:    2048 kB
Locked:                0 kB
`

func TestParseRollup(t *testing.T) {
	got, err := parseRollup([]byte(rollupText))
	if want := (rollup{pss: 311 << 10, privateDirty: 112 << 10, privateHuge: 2048 << 10}); err != nil || got != want {
		t.Fatalf("%+v, %v, want %+v", got, err, want)
	}
}

// What is cut short or in another form is no size, and never 0.
func TestParseRollupRefuses(t *testing.T) {
	header := "558ecb42c000-7fff0f2a5000 ---p 00000000 00:00 0 [rollup]\n"
	for name, text := range map[string]string{
		"empty":      "",
		"header":     header,
		"no huge":    header + "Pss: 1 kB\nPrivate_Dirty: 1 kB\n",
		"no pss":     header + "Private_Dirty: 1 kB\nPrivate_Hugetlb: 1 kB\n",
		"no unit":    header + "Pss: 1\nPrivate_Dirty: 1 kB\nPrivate_Hugetlb: 1 kB\n",
		"no number":  header + "Pss: x kB\nPrivate_Dirty: 1 kB\nPrivate_Hugetlb: 1 kB\n",
		"negative":   header + "Pss: -1 kB\nPrivate_Dirty: 1 kB\nPrivate_Hugetlb: 1 kB\n",
		"no value":   header + "Pss:\nPrivate_Dirty: 1 kB\nPrivate_Hugetlb: 1 kB\n",
		"cut number": header + "Pss: 1 kB\nPrivate_Dirty: 1 kB\nPrivate_Hugetlb: 1",
	} {
		if r, err := parseRollup([]byte(text)); err == nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestAtRest(t *testing.T) {
	trees := func(of ...[]int) func() ([]int, error) {
		return func() (pids []int, err error) {
			pids, of = of[0], append(of[1:], of[0])
			return pids, nil
		}
	}
	sum := func(pids []int) (engine.Memory, error) { return engine.Memory{Processes: len(pids)}, nil }
	dead := errors.New("no")
	for name, c := range map[string]struct {
		list func() ([]int, error)
		read func([]int) (engine.Memory, error)
		want int
	}{
		"at rest":             {trees([]int{1, 2}), sum, 2},
		"one came":            {trees([]int{1}, []int{1, 2}, []int{1, 2}), sum, 2},
		"others of the count": {trees([]int{1, 2}, []int{1, 3}), sum, 0},
		"one after another":   {trees([]int{1}, []int{2}, []int{3}), sum, 0},
		"one ended": {trees([]int{1, 2}, []int{1}, []int{1}), func(pids []int) (engine.Memory, error) {
			if len(pids) == 2 {
				return engine.Memory{Processes: 1}, fmt.Errorf("pid 2: %w", engine.ErrDead)
			}
			return sum(pids)
		}, 1},
		"ended and still listed": {trees([]int{1, 2}), func([]int) (engine.Memory, error) { return engine.Memory{}, engine.ErrDead }, 0},
		"not readable":           {trees([]int{1}), func([]int) (engine.Memory, error) { return engine.Memory{}, dead }, 0},
		"not listed":             {func() ([]int, error) { return nil, dead }, sum, 0},
	} {
		m, err := atRest(c.list, c.read)
		if (err == nil) != (c.want > 0) || m.Processes != c.want {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
}
