package compile

import (
	"fmt"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	cueerrors "cuelang.org/go/cue/errors"
	cueliteral "cuelang.org/go/cue/literal"
)

// CUE compares each error with all those before it, so that a document of a
// megabyte whose every value is wrong takes it minutes. A large one is looked at part
// by part first; with more mistakes than a person reads it is refused as it stands.
const (
	// floodSize is the size in bytes from which on that is done: below it, the worst takes some seconds.
	floodSize = 32 << 10
	// floodPart is how many nodes of syntax are looked at together.
	floodPart = 400
	// floodErrors are too many.
	floodErrors = 500
)

// flood counts the mistakes of a document's parts.
type flood struct {
	ctx    *cue.Context
	errors int
	first  cueerrors.Error
	// where the first one is.
	path []string
}

// drowned refuses what has too many mistakes; nil where it has not, whether it has any or none.
func (f *flood) drowned(def cue.Value, e ast.Expr) error {
	f.part(def, e, nil)
	if f.errors < floodErrors {
		return nil
	}
	at := pathString(append(f.path, f.first.Path()...))
	format, args := f.first.Msg()
	return Problems{{Path: at, Text: fmt.Sprintf("%s; and more than %d other mistakes", fmt.Sprintf(format, args...), floodErrors-1), Hint: "it is no such document, or one of another version"}}
}

// part counts the mistakes of a part, until they are too many.
func (f *flood) part(def cue.Value, e ast.Expr, path []string) {
	if f.errors >= floodErrors {
		return
	}
	if weighs(e) > floodPart {
		switch e := e.(type) {
		case *ast.StructLit:
			f.fields(def, e, path)
			return
		case *ast.ListLit:
			if element := def.LookupPath(cue.MakePath(cue.AnyIndex)); element.Exists() {
				for i, x := range e.Elts {
					f.part(element, x, append(path[:len(path):len(path)], fmt.Sprint(i)))
				}
				return
			}
		}
	}
	if err := f.ctx.BuildExpr(e).Unify(def).Validate(cue.Concrete(true), cue.Final()); err != nil {
		f.add(path, cueerrors.Errors(err)...)
	}
}

func (f *flood) add(path []string, errs ...cueerrors.Error) {
	if f.errors == 0 && len(errs) > 0 {
		f.first, f.path = errs[0], path
	}
	f.errors += len(errs)
}

func (f *flood) fields(def cue.Value, s *ast.StructLit, path []string) {
	known, pattern := fieldsOf(def), def.LookupPath(cue.MakePath(cue.AnyString))
	for _, d := range s.Elts {
		field, ok := d.(*ast.Field)
		if !ok {
			continue
		}
		name, _, err := ast.LabelName(field.Label)
		if err != nil {
			if lit, is := field.Label.(*ast.BasicLit); is {
				name, err = cueliteral.Unquote(lit.Value)
			}
		}
		below := append(path[:len(path):len(path)], name)
		switch to, has := known[name]; {
		case err != nil:
			continue
		case has:
			f.part(to.value, field.Value, below)
		case pattern.Exists():
			f.part(pattern, field.Value, below)
		default:
			f.add(below, cueerrors.Newf(field.Pos(), "no such field"))
		}
		if f.errors >= floodErrors {
			return
		}
	}
}

// weighs is how many nodes of syntax an expression has, or a little more than [floodPart].
func weighs(e ast.Expr) (n int) {
	ast.Walk(e, func(ast.Node) bool {
		n++
		return n <= floodPart
	}, nil)
	return n
}
