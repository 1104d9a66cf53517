package compile

import (
	"fmt"
	"sync"

	"cuelang.org/go/cue"
	cuejson "cuelang.org/go/encoding/json"
)

// checker is the compiled schema. A cue.Context is not safe for concurrent use.
type checker struct {
	mu     sync.Mutex
	ctx    *cue.Context
	schema cue.Value
	used   int
}

var shared checker

// Validate checks JSON data against a definition of the embedded schema, named
// without "#": "Record", "Plan", "Receipt", "LedgerLine", "Checkpoint". Safe for
// concurrent use. The error is Problems, with a path and no position.
func Validate(definition string, data []byte) error {
	return shared.validate(definition, data)
}

func (c *checker) validate(definition string, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx == nil {
		ctx, schema, err := newSchema()
		if err != nil {
			return err
		}
		c.ctx, c.schema = ctx, schema
	}
	def := c.schema.LookupPath(cue.MakePath(cue.Def(definition)))
	if !def.Exists() {
		return fmt.Errorf("validate: the schema has no #%s", definition)
	}
	expr, err := cuejson.Extract("", data)
	if err != nil {
		return loadProblems(err)
	}
	v := c.ctx.BuildExpr(expr).Unify(def)
	if err := v.Validate(cue.Concrete(true), cue.Final()); err != nil {
		return loadProblems(err)
	}
	return nil
}
