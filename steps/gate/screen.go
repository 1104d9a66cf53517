package gate

import (
	"strconv"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/screen"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// JudgeScreen requires that a restored screen shows what was on it before the dump,
// outside of the regions that move by themselves. Both pictures are evidence. Where
// a person is asked and the pictures are alike, the answer is theirs.
func JudgeScreen(p bench.ScreenPolicy, ask *bench.ReviewPolicy, before, after engine.Reading[[]byte]) (j engine.Judgement) {
	a, ok := known(&j, "screen before the dump", before)
	if !ok {
		return j
	}
	b, ok := known(&j, "screen", after)
	if !ok {
		return j
	}
	j.Evidence = map[string][]byte{"screen-dumped.png": a, "screen-restored.png": b}
	fact(&j, "screen-sha256", string(canonical.Sum(b)), after.Source(), after.View())
	first, err := screen.Decode(a)
	if err != nil {
		j.Add(engine.VerdictUnknown, "screen before the dump", err.Error())
		return j
	}
	second, err := screen.Decode(b)
	if err != nil {
		j.Add(engine.VerdictUnknown, "screen", err.Error())
		return j
	}
	part, err := screen.Differ(first, second, p.Moving)
	if err != nil {
		j.Add(engine.VerdictUnknown, "screen", err.Error())
		return j
	}
	text := func(f float64) string { return strconv.FormatFloat(f, 'f', 6, 64) }
	fact(&j, "screen-differs", text(part), after.Source(), after.View())
	if part > p.Differ {
		f := j.Add(engine.Fail, "screen", "the restored screen shows something else than the one that was dumped")
		f.Want, f.Have = "at most "+text(p.Differ)+" of the pixels", text(part)
		f.Hint = "look at screen-dumped.png and screen-restored.png; what moves by itself is named in screen.moving"
		return j
	}
	if ask != nil {
		f := j.Add(engine.Review, "screen", ask.Question)
		f.Hint = "drumsbench review takes the decision"
	}
	return j
}
