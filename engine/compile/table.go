package compile

import (
	"encoding/json"
	"fmt"

	"cuelang.org/go/cue"

	"github.com/drumsbench/drumsbench/engine"
)

// Table decodes a field of the embedded schema's package that holds data, such
// as "sameness", into v. All of it has to be concrete.
func Table(name string, v any) error {
	_, schema, err := newSchema()
	if err != nil {
		return &engine.Error{Op: "compile schema of this program", Err: err}
	}
	data, err := schema.LookupPath(cue.ParsePath(name)).MarshalJSON()
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		return &engine.Error{Op: "read table of the schema", Err: fmt.Errorf("%s: %w", name, err)}
	}
	return nil
}
