package compile

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/token"
)

// walk compares what a person wrote with the schema, field by field, so that
// each mistake is found on its own and told at the place where it was written.
type walk struct {
	at *locator
	// failed are the paths at which the real evaluation failed: a field without a
	// value is a mistake only there, since elsewhere the schema supplied one.
	failed   map[string]bool
	ctx      *cue.Context
	schema   cue.Value
	problems Problems
}

func newWalk(at *locator, failed map[string]bool) (*walk, error) {
	ctx, schema, err := newSchema()
	return &walk{at: at, failed: failed, ctx: ctx, schema: schema}, err
}

// check compares value with a definition.
func (w *walk) check(definition string, value cue.Value) Problems {
	if p := w.otherKind(definition, value); p != nil && w.at.instance != nil {
		return Problems{*p}
	}
	w.value(w.schema.LookupPath(cue.MakePath(cue.Def(definition))), value, nil)
	return w.problems
}

// otherKind is the one problem of a package that is not of the kind that was
// asked for; nil where it is. What people write is a manifest or a recipe.
func (w *walk) otherKind(definition string, value cue.Value) *Problem {
	manifest, recipe := w.known("Manifest", value), w.known("Recipe", value)
	switch {
	case definition == "Manifest" && recipe > manifest:
		return &Problem{File: w.at.file(), Text: "this is an image recipe, not a manifest", Hint: "drumsbench image build builds it"}
	case definition == "Recipe" && manifest > recipe:
		return &Problem{File: w.at.file(), Text: "this is a manifest, not an image recipe", Hint: "drumsbench run executes it"}
	case max(manifest, recipe) == 0:
		return &Problem{File: w.at.file(), Text: fmt.Sprintf("no %s at the top of this package", strings.ToLower(definition)),
			Hint: fmt.Sprintf("write bench.#%s & {…} at the top of the file", definition)}
	}
	return nil
}

// known counts the fields of value that a definition has.
func (w *walk) known(definition string, value cue.Value) int {
	fields := fieldsOf(w.schema.LookupPath(cue.MakePath(cue.Def(definition))))
	it, err := value.Fields()
	if err != nil {
		return 1 // it cannot be read: its own error says why
	}
	n := 0
	for it.Next() {
		if _, known := fields[it.Selector().Unquoted()]; known {
			n++
		}
	}
	return n
}

// homes are the paths of the structs of a manifest that have a field of a name.
func (w *walk) homes() map[string][]string {
	homes := map[string][]string{}
	var visit func(def cue.Value, path []string)
	visit = func(def cue.Value, path []string) {
		for name, field := range fieldsOf(def) {
			if len(path) > 0 {
				homes[name] = append(homes[name], pathString(path))
				slices.Sort(homes[name])
			}
			below := append(slices.Clone(path), name)
			if field.value.IncompleteKind() == cue.StructKind {
				visit(field.value, below)
			} else if element := field.value.LookupPath(cue.MakePath(cue.AnyIndex)); element.IncompleteKind() == cue.StructKind {
				visit(element, append(below, "0"))
			}
		}
	}
	visit(w.schema.LookupPath(cue.MakePath(cue.Def("Manifest"))), nil)
	return homes
}

// schemaField is a field that a definition allows.
type schemaField struct {
	value    cue.Value
	required bool
	doc      string
}

// fieldsOf are the fields that a struct of the schema names.
func fieldsOf(def cue.Value) map[string]schemaField {
	fields := map[string]schemaField{}
	it, err := def.Fields(cue.Optional(true))
	if err != nil {
		return fields
	}
	for it.Next() {
		if !it.Selector().IsString() {
			continue
		}
		f := schemaField{value: it.Value(), required: it.FieldType()&cue.RequiredConstraint != 0}
		for _, group := range it.Value().Doc() {
			f.doc = strings.TrimSpace(group.Text())
		}
		fields[it.Selector().Unquoted()] = f
	}
	return fields
}

// structs compares a struct.
func (w *walk) structs(def, value cue.Value, path []string) {
	fields := fieldsOf(def)
	pattern := def.LookupPath(cue.MakePath(cue.AnyString))
	it, err := value.Fields()
	if err != nil {
		return // the person's own mistake, which is told by its own error
	}
	unknown := []string{}
	present := map[string]bool{}
	for it.Next() {
		name := it.Selector().Unquoted()
		if strings.HasPrefix(name, openPrefix) {
			continue // a definition of the person's own
		}
		present[name] = true
		below := append(slices.Clone(path), it.Selector().String())
		field, known := fields[name]
		switch {
		case known:
			w.value(field.value, it.Value(), below)
		case pattern.Exists():
			w.value(pattern, it.Value(), below)
		default:
			unknown = append(unknown, name)
		}
	}
	var missing []string
	for name, field := range fields {
		if field.required && !present[name] {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	for _, name := range unknown {
		below := append(slices.Clone(path), name)
		p := Problem{Path: pathString(below), Text: "no such field"}
		p.File, p.Line, p.Col = w.at.position(w.at.find(below).label)
		// A required field that is missing is the likelier meaning.
		near := nearest(name, missing)
		if near == "" {
			near = nearest(name, absent(fields, present))
		}
		if near != "" {
			p.Hint = fmt.Sprintf("did you mean %q?", near)
			missing = slices.DeleteFunc(missing, func(m string) bool { return m == near })
		} else if set := nearest(name, slices.Sorted(maps.Keys(fields))); set != "" {
			p.Hint = fmt.Sprintf("%q is set already; remove this one", set)
		} else if home := w.homes()[name]; len(home) > 0 && len(home) <= 3 {
			p.Hint = fmt.Sprintf("%s is a field of %s", name, or(home))
		} else if free := absent(fields, present); len(free) > 0 {
			p.Hint = "fields that may stand here: " + strings.Join(free, ", ")
		}
		w.problems = append(w.problems, p)
	}
	for _, name := range missing {
		p := Problem{Path: pathString(path), Text: "missing field " + name}
		p.File, p.Line, p.Col = w.at.position(w.at.find(path).label)
		p.Hint = describe(name, fields[name])
		w.problems = append(w.problems, p)
	}
}

// describe says what a field is for and what may stand in it.
func describe(name string, field schemaField) string {
	text := kindText(field.value.IncompleteKind())
	if field.value.IncompleteKind() != cue.StructKind {
		text = wantOf(field.value).text()
	}
	if field.doc == "" {
		return name + " is " + text
	}
	doc := strings.TrimSuffix(strings.Join(strings.Fields(field.doc), " "), ".")
	return fmt.Sprintf("%s is %s: %s", name, text, strings.ToLower(doc[:1])+doc[1:])
}

// absent are the names of fields that are not present, sorted.
func absent(fields map[string]schemaField, present map[string]bool) []string {
	var names []string
	for name := range fields {
		if !present[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// value compares any value.
func (w *walk) value(def, value cue.Value, path []string) {
	if value.Err() != nil && value.IncompleteKind() == cue.BottomKind {
		return // told by its own error
	}
	if d, ok := value.Default(); ok {
		value = d
	}
	kind := value.IncompleteKind()
	isStruct := def.IncompleteKind() == cue.StructKind
	switch {
	case isStruct && kind == cue.StructKind:
		w.structs(def, value, path)
	case value.IsConcrete() && kind == cue.ListKind && w.elements(def, value, path):
	default:
		w.leaf(def, value, path)
	}
}

// elements compares a list whose elements the schema describes all alike. It
// says false where the list must be judged as a whole.
func (w *walk) elements(def, value cue.Value, path []string) bool {
	element := def.LookupPath(cue.MakePath(cue.AnyIndex))
	if !element.Exists() || def.LookupPath(cue.MakePath(cue.Index(0))).Exists() {
		return false
	}
	it, err := value.List()
	if err != nil {
		return false
	}
	for i := 0; it.Next(); i++ {
		w.value(element, it.Value(), append(slices.Clone(path), fmt.Sprint(i)))
	}
	return true
}

// leaf compares a value that is judged as a whole.
func (w *walk) leaf(def, value cue.Value, path []string) {
	where := w.at.find(path)
	p := Problem{Path: pathString(path)}
	pos := where.value()
	if where.depth < len(path) && w.at.mine(value.Pos()) {
		pos = value.Pos() // the syntax does not lead there: a reference or a comprehension does
	}
	data, err := value.MarshalJSON()
	if written := where.written(string(data)); err == nil && written.IsValid() {
		pos = written
	}
	p.File, p.Line, p.Col = w.at.position(pos)
	if err != nil {
		if w.failed[p.Path] {
			p.Text = fmt.Sprintf("no value, only %v", value)
			p.Hint = w.at.tagHint(path)
			w.problems = append(w.problems, p)
		}
		return
	}
	have := w.ctx.CompileBytes(data)
	if def.Unify(have).Validate(cue.Concrete(true), cue.Final()) == nil {
		return
	}
	want := want{kinds: cue.StructKind}
	if def.IncompleteKind() != cue.StructKind {
		want = wantOf(def)
	}
	p.Text = w.text(want, string(data), have)
	p.Hint = want.hint(string(data))
	if origin := w.origin(value); origin.IsValid() && origin.Filename() != pos.Filename() {
		file, line, col := w.at.position(origin)
		p.Hint = strings.TrimPrefix(fmt.Sprintf("%s; the value is from %s:%d:%d", p.Hint, file, line, col), "; ")
	}
	w.problems = append(w.problems, p)
}

// origin is where a value that is a reference was written.
func (w *walk) origin(value cue.Value) token.Pos {
	if op, args := value.Expr(); op == cue.AndOp {
		for _, arg := range args {
			if pos := w.origin(arg); pos.IsValid() {
				return pos
			}
		}
		return token.NoPos
	}
	if pos := cue.Dereference(value).Pos(); w.at.mine(pos) {
		return pos
	}
	return token.NoPos
}

// text says what stands there and what is wanted.
func (w *walk) text(want want, data string, have cue.Value) string {
	switch {
	case want.exec && data == "[]":
		return "empty command, want " + want.text()
	case want.exec && have.Kind() == cue.ListKind:
		if first, err := have.LookupPath(cue.MakePath(cue.Index(0))).String(); err == nil && first == "" {
			return "the program's name is empty, want " + want.text()
		}
	}
	return fmt.Sprintf("have %s, want %s", clip(data), want.text())
}

// clip keeps a value on the line.
func clip(data string) string {
	const limit = 80
	if r := []rune(data); len(r) > limit {
		return string(r[:limit]) + "…"
	}
	return data
}
