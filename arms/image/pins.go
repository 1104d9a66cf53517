package image

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/format"
	"cuelang.org/go/cue/literal"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/token"
	"github.com/google/renameio/v2"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

var (
	pinName  = regexp.MustCompile(`^[a-z][a-z0-9-]{0,47}$`)
	pinValue = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// RewritePin sets one pin in a CUE file of pins to a digest and leaves all else,
// comments included, as it is. A pin that is not there is added at the end. The
// file is replaced in one step. If the pin has the value already, nothing is written.
//
// ErrUsage: the name, the digest or the file is not what a pin needs.
func RewritePin(file, name string, sha string) error {
	const op = "rewrite pin"
	if !pinName.MatchString(name) || !pinValue.MatchString(sha) {
		return &engine.Error{Op: op, Err: fmt.Errorf("%s: %q: %w", name, sha, engine.ErrUsage)}
	}
	tree, err := parsePins(op, file)
	if err != nil {
		return err
	}
	field, err := findPin(op, tree, name)
	if err != nil {
		return err
	}
	switch {
	case field == nil:
		tree.Decls = append(tree.Decls, &ast.Field{Label: ast.NewStringLabel(name), Value: ast.NewString(sha)})
	default:
		old, ok := pinText(field)
		if !ok {
			return &engine.Error{Op: op, Err: fmt.Errorf("%s: %s is no plain string: %w", file, name, engine.ErrUsage)}
		}
		if old == sha {
			return nil
		}
		value := ast.NewString(sha)
		ast.SetPos(value, field.Value.Pos())
		ast.SetComments(value, ast.Comments(field.Value))
		field.Value = value
	}
	text, err := format.Node(tree)
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	// The file may be a link into another folder, and a link is not replaced by a file.
	target, err := filepath.EvalSymlinks(file)
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	info, err := os.Stat(target)
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	if err := renameio.WriteFile(target, text, info.Mode().Perm(), renameio.IgnoreUmask()); err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	back, err := ReadPins(file)
	if err != nil {
		return err
	}
	if back[name] != bench.SHA256(sha) {
		return &engine.Error{Op: op, Err: fmt.Errorf("read %s back as %q", name, back[name])}
	}
	return nil
}

// ReadPins returns the pins of a file by name: its plain string fields.
func ReadPins(file string) (map[string]bench.SHA256, error) {
	tree, err := parsePins("read pins", file)
	if err != nil {
		return nil, err
	}
	pins := map[string]bench.SHA256{}
	for _, decl := range tree.Decls {
		field, ok := decl.(*ast.Field)
		if !ok {
			continue
		}
		name, _, err := ast.LabelName(field.Label)
		if err != nil {
			continue
		}
		if text, ok := pinText(field); ok {
			pins[name] = bench.SHA256(text)
		}
	}
	return pins, nil
}

func parsePins(op, file string) (*ast.File, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%w: %w", err, engine.ErrUsage), Hint: "make it with a package clause, or name another file"}
	}
	tree, err := parser.ParseFile(file, text, parser.ParseComments)
	if err != nil {
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%w: %w", err, engine.ErrUsage)}
	}
	return tree, nil
}

// findPin returns the one field with this name; nil for none.
func findPin(op string, tree *ast.File, name string) (*ast.Field, error) {
	var found *ast.Field
	for _, decl := range tree.Decls {
		field, ok := decl.(*ast.Field)
		if !ok {
			continue
		}
		if label, _, err := ast.LabelName(field.Label); err != nil || label != name {
			continue
		}
		if found != nil {
			return nil, &engine.Error{Op: op, Err: fmt.Errorf("%s: %s is there twice: %w", field.Pos(), name, engine.ErrUsage)}
		}
		found = field
	}
	return found, nil
}

func pinText(field *ast.Field) (string, bool) {
	lit, ok := field.Value.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := literal.Unquote(lit.Value)
	return text, err == nil
}
