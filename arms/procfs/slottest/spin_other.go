//go:build !amd64

package slottest

import "math"

// spin has no registers under its own control here; it computes the same thing twice.
func spin(loops, seed uint64) (bad uint64) {
	compute := func() float64 {
		x := float64(seed%1000) + 1
		for range loops {
			x = math.Sqrt(x*x+1) / 1.0000001
		}
		return x
	}
	if compute() != compute() {
		return 1
	}
	return 0
}
