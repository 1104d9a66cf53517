package compile

import (
	"encoding/json"
	"fmt"
	"sync"

	"cuelang.org/go/cue"
	cuejson "cuelang.org/go/encoding/json"

	"github.com/drumsbench/drumsbench/engine"
)

// Validate checks JSON data against a definition of the embedded schema, named
// without "#": "Record", "Plan", "Receipt", "LedgerLine", "Checkpoint", …. The
// error is Problems, each with a path and no position. Safe for concurrent use;
// the schema is compiled once.
func Validate(definition string, data []byte) error {
	return shared.validate(definition, data)
}

// checker is the compiled schema. A cue.Context is not safe for concurrent use
// and keeps what was built in it, so it is used by one at a time and made anew
// now and then.
type checker struct {
	mu     sync.Mutex
	ctx    *cue.Context
	schema cue.Value
	used   int
}

// contextUses is how often a context is used before it is made anew.
const contextUses = 4096

var shared checker

func (c *checker) validate(definition string, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx == nil || c.used >= contextUses {
		ctx, schema, err := newSchema()
		if err != nil {
			return &engine.Error{Op: "compile schema of this program", Err: err}
		}
		c.ctx, c.schema, c.used = ctx, schema, 0
	}
	c.used++
	def := c.schema.LookupPath(cue.MakePath(cue.Def(definition)))
	if !def.Exists() {
		return &engine.Error{Op: "validate " + definition, Err: fmt.Errorf("the schema has no definition #%s", definition)}
	}
	// CUE's reader of JSON does not say what is wrong with it.
	if err := json.Unmarshal(data, new(json.RawMessage)); err != nil {
		return Problems{{Text: "invalid JSON: " + err.Error()}}
	}
	expr, err := cuejson.Extract("", data)
	if err != nil {
		return loadProblems("", err)
	}
	if len(data) > floodSize {
		if err := (&flood{ctx: c.ctx}).drowned(def, expr); err != nil {
			c.used = contextUses // what was built of it goes with the context
			return err
		}
	}
	value := c.ctx.BuildExpr(expr)
	err = value.Unify(def).Validate(cue.Concrete(true), cue.Final())
	if err == nil {
		return nil
	}
	w := &walk{at: &locator{}, failed: pathsOf(err), ctx: c.ctx, schema: c.schema}
	if problems := w.check(definition, value); len(problems) > 0 {
		return tidy(problems)
	}
	return loadProblems("", err)
}
