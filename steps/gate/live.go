package gate

import (
	"math/big"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// JudgeLive requires that memory came back and lives: the token, which exists
// nowhere but in the guest server's memory, is the checkpoint's, and the
// counter is not behind the checkpoint's and goes on between two readings.
func JudgeLive(want bench.LiveState, first, second engine.Reading[bench.LiveState]) (j engine.Judgement) {
	a, ok := known(&j, "live state", first)
	if !ok {
		return j
	}
	b, ok := known(&j, "live state", second)
	if !ok {
		return j
	}
	if want.Token == "" {
		j.Add(engine.VerdictUnknown, "token", "the checkpoint holds no token")
		return j
	}
	for _, got := range []bench.LiveState{a, b} {
		if got.Token != want.Token {
			f := j.Add(engine.Fail, "token", "the guest server is not the one that was dumped")
			f.Want, f.Have = want.Token, got.Token
			return j
		}
	}
	w, x, y := number(want.Counter), number(a.Counter), number(b.Counter)
	if w == nil || x == nil || y == nil {
		j.Add(engine.VerdictUnknown, "counter", "is not a number")
		return j
	}
	if x.Cmp(w) < 0 {
		f := j.Add(engine.Fail, "counter", "is behind the checkpoint's")
		f.Want, f.Have = "at least "+string(want.Counter), string(a.Counter)
	}
	if y.Cmp(x) <= 0 {
		f := j.Add(engine.Fail, "counter", "does not go on")
		f.Want, f.Have = "more than "+string(a.Counter), string(b.Counter)
	}
	fact(&j, "live-counter", b.Counter, second.Source(), second.View())
	return j
}

func number(s bench.Int64) *big.Int {
	n, ok := new(big.Int).SetString(string(s), 10)
	if !ok {
		return nil
	}
	return n
}
