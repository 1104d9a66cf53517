package gate

import (
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
)

// JudgeLook passes nothing: a picture of the screen waits for a person to answer the
// manifest's question. A picture that could not be had is unknown, since there is
// nothing to decide by.
func JudgeLook(question string, picture engine.Reading[[]byte]) (j engine.Judgement) {
	data, ok := known(&j, "screen", picture)
	if !ok {
		return j
	}
	j.Evidence = map[string][]byte{"screen.png": data}
	fact(&j, "screen-sha256", string(canonical.Sum(data)), picture.Source(), picture.View())
	f := j.Add(engine.Review, "screen", question)
	f.Hint = "drumsbench review takes the decision"
	return j
}
