package compile

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/build"
	cueerrors "cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/token"
)

// locator finds where in a person's files something was written.
type locator struct {
	// root is the folder of the module; the schema lies outside it.
	root     string
	instance *build.Instance
}

func newLocator(root string, instance *build.Instance) *locator {
	return &locator{root: root, instance: instance}
}

// found is the place of a path: the deepest field on the way to it that is written in the package.
type found struct {
	// depth is how many labels of the path were found.
	depth int
	label token.Pos
	expr  ast.Expr
	// all are the places at that depth: a path may be set more than once.
	all []found
}

// written is the place at which the value stands as data says; invalid if there is none.
func (f found) written(data string) token.Pos {
	for _, place := range f.all {
		if literal(place.expr) == data {
			return place.value()
		}
	}
	return token.NoPos
}

// literal is the text of a scalar as it is written; empty for anything else.
func literal(expr ast.Expr) string {
	switch expr := expr.(type) {
	case *ast.BasicLit:
		return expr.Value
	case *ast.UnaryExpr:
		if text := literal(expr.X); text != "" {
			return expr.Op.String() + text
		}
	}
	return ""
}

// value is where the value stands; a struct stands where its label does.
func (f found) value() token.Pos {
	if _, isStruct := f.expr.(*ast.StructLit); f.expr == nil || (isStruct && f.label.IsValid()) {
		return f.label
	}
	return f.expr.Pos()
}

// find looks for path in the syntax of the package's own files.
func (l *locator) find(path []string) found {
	best := found{depth: -1}
	if l.instance == nil {
		return best
	}
	for _, file := range l.instance.Files {
		l.inDecls(file.Decls, path, 0, &best, map[ast.Node]bool{})
	}
	return best
}

func (l *locator) inDecls(decls []ast.Decl, path []string, depth int, best *found, seen map[ast.Node]bool) {
	for _, decl := range decls {
		switch decl := decl.(type) {
		case *ast.EmbedDecl:
			l.inExpr(decl.Expr, path, depth, token.NoPos, best, seen)
		case *ast.Field:
			name, _, err := ast.LabelName(decl.Label)
			if err == nil && depth < len(path) && (name == path[depth] || strconv.Quote(name) == path[depth]) {
				l.inExpr(decl.Value, path, depth+1, decl.Label.Pos(), best, seen)
			}
		}
	}
}

func (l *locator) inExpr(expr ast.Expr, path []string, depth int, label token.Pos, best *found, seen map[ast.Node]bool) {
	if expr == nil || seen[expr] {
		return
	}
	seen[expr] = true
	if !label.IsValid() {
		label = expr.Pos()
	}
	if depth > best.depth {
		*best = found{depth: depth, label: label, expr: expr}
	}
	if _, isParts := expr.(*ast.BinaryExpr); depth == best.depth && !isParts {
		best.all = append(best.all, found{depth: depth, label: label, expr: expr})
	}
	switch expr := expr.(type) {
	case *ast.StructLit:
		l.inDecls(expr.Elts, path, depth, best, seen)
	case *ast.ListLit:
		if depth < len(path) {
			if i, err := strconv.Atoi(path[depth]); err == nil && i < len(expr.Elts) && countable(expr.Elts[:i+1]) {
				l.inExpr(expr.Elts[i], path, depth+1, expr.Elts[i].Pos(), best, seen)
			}
		}
	case *ast.BinaryExpr:
		if expr.Op == token.AND || expr.Op == token.OR {
			l.inExpr(expr.X, path, depth, label, best, seen)
			l.inExpr(expr.Y, path, depth, label, best, seen)
		}
	case *ast.ParenExpr:
		l.inExpr(expr.X, path, depth, label, best, seen)
	case *ast.UnaryExpr:
		if expr.Op == token.MUL { // a default's mark
			l.inExpr(expr.X, path, depth, label, best, seen)
		}
	case *ast.Ident:
		switch node := expr.Node.(type) {
		case *ast.Field:
			l.inExpr(node.Value, path, depth, label, best, seen)
		case *ast.LetClause:
			l.inExpr(node.Expr, path, depth, label, best, seen)
		case ast.Expr:
			l.inExpr(node, path, depth, label, best, seen)
		}
	}
}

// countable says that the elements of a list stand where their index says: a
// comprehension or an ellipsis among them stands for any number.
func countable(elements []ast.Expr) bool {
	for _, e := range elements {
		switch e.(type) {
		case *ast.Comprehension, *ast.Ellipsis:
			return false
		}
	}
	return true
}

// position is pos as a Problem has it.
func (l *locator) position(pos token.Pos) (file string, line, col int) {
	if !pos.IsValid() {
		return "", 0, 0
	}
	return display(pos.Filename()), pos.Line(), pos.Column()
}

// file is the first file of the package, or its folder if it has none.
func (l *locator) file() string {
	if l.instance == nil {
		return display(l.root)
	}
	if len(l.instance.Files) == 0 {
		return display(l.instance.Dir)
	}
	return display(l.instance.Files[0].Filename)
}

// mine says whether pos lies in the person's module.
func (l *locator) mine(pos token.Pos) bool {
	return pos.IsValid() && strings.HasPrefix(pos.Filename(), l.root+string(filepath.Separator))
}

// filesWith are the files of the package that set a field at their top, in order.
func (l *locator) filesWith(field string) []string {
	var files []string
	for _, file := range l.instance.Files {
		best := found{depth: -1}
		l.inDecls(file.Decls, []string{field}, 0, &best, map[ast.Node]bool{})
		if best.depth == 1 {
			files = append(files, display(file.Filename))
		}
	}
	slices.Sort(files)
	return files
}

// userProblem is an error of CUE's that concerns what the person wrote, in our words.
func (l *locator) userProblem(e cueerrors.Error) Problem {
	p := Problem{Path: pathString(e.Path()), Text: textOf(e)}
	var positions []token.Pos
	for _, pos := range append([]token.Pos{e.Position()}, e.InputPositions()...) {
		if l.mine(pos) && !slices.Contains(positions, pos) {
			positions = append(positions, pos)
		}
	}
	at := l.find(e.Path())
	pos := at.value()
	if isConflict(e) && at.depth == len(e.Path()) && len(at.all) > 1 {
		positions = nil
		for _, place := range at.all {
			positions = append(positions, place.value())
		}
	}
	if len(positions) > 0 {
		slices.SortFunc(positions, func(a, b token.Pos) int {
			return cmp.Or(cmp.Compare(a.Filename(), b.Filename()), cmp.Compare(a.Offset(), b.Offset()))
		})
		pos = positions[0]
	}
	p.File, p.Line, p.Col = l.position(pos)

	msg, args := e.Msg()
	switch {
	case strings.HasPrefix(msg, "reference %q not found") && len(args) > 0:
		p.Text = fmt.Sprintf("%v is not defined", args[0])
		p.Hint = fmt.Sprintf("text stands in quotes: \"%v\"", args[0])
	case strings.HasPrefix(msg, "undefined field") && len(args) > 0:
		name := strings.ReplaceAll(fmt.Sprint(args[0]), openPrefix, "#")
		p.Text = name + " is not defined"
		if selector, pkg := l.selectorAt(pos); selector != "" {
			p.Text = selector + " is not defined"
			p.Hint = suggestion(name, l.namesIn(pkg))
		}
	case strings.HasPrefix(msg, "conflicting values"):
		p.Text = fmt.Sprintf("conflicting values %v and %v", args[0], args[1])
		if len(positions) > 1 {
			file, line, col := l.position(positions[1])
			p.Hint = fmt.Sprintf("it is also set at %s:%d:%d", file, line, col)
		}
	case strings.HasPrefix(msg, "imported and not used"):
		p.Path = ""
		p.Hint = "remove the import"
	case strings.HasPrefix(msg, "incomplete value"):
		p.Text = fmt.Sprintf("no value, only %v", args[0])
		p.Hint = l.tagHint(e.Path())
	}
	return p
}

// noneOf is the problem of a value that meets no alternative of the person's own
// disjunction, usually one that a tag has set. The first of errs is the
// disjunction's; in each other one the value stands beside one alternative.
func (l *locator) noneOf(errs []cueerrors.Error) Problem {
	p := l.userProblem(errs[0])
	times := map[string]int{}
	var words []string
	for _, e := range errs[1:] {
		_, args := e.Msg()
		for _, arg := range args[:min(2, len(args))] {
			word := fmt.Sprint(arg)
			times[word]++
			words = append(words, word)
		}
	}
	have := ""
	for word, n := range times {
		if n == len(errs)-1 {
			have = word
		}
	}
	words = slices.DeleteFunc(words, func(word string) bool { return word == have })
	if have == "" || len(words) == 0 {
		return p
	}
	p.Text = fmt.Sprintf("have %s, want %s", have, or(words))
	p.Hint = want{literals: words}.hint(have)
	return p
}

// tagHint tells how a field that has only a type gets its value.
func (l *locator) tagHint(path []string) string {
	hint := "give it a value"
	if l.instance == nil || len(path) == 0 {
		return hint
	}
	for _, file := range l.instance.Files {
		ast.Walk(file, func(n ast.Node) bool {
			field, ok := n.(*ast.Field)
			if !ok {
				return true
			}
			if name, _, err := ast.LabelName(field.Label); err != nil || name != path[len(path)-1] {
				return true
			}
			for _, attribute := range field.Attrs {
				if key, body := attribute.Split(); key == "tag" {
					name, _, _ := strings.Cut(body, ",")
					hint = fmt.Sprintf("set it with -t %s=VALUE", name)
				}
			}
			return true
		}, nil)
	}
	return hint
}

// selectorAt is the source text of the selector whose last name stands at pos,
// such as pins.tiny, and the import path that it selects from.
func (l *locator) selectorAt(pos token.Pos) (text, pkg string) {
	if l.instance == nil {
		return "", ""
	}
	for _, file := range l.instance.Files {
		ast.Walk(file, func(n ast.Node) bool {
			selector, ok := n.(*ast.SelectorExpr)
			if at := pos.Position(); !ok || selector.Sel.Pos().Position() != at {
				return true
			}
			text = selectorText(selector)
			if ident, ok := selector.X.(*ast.Ident); ok {
				for spec := range file.ImportSpecs() {
					path, _ := strconv.Unquote(spec.Path.Value)
					info := ast.ParseImportPath(path)
					if (spec.Name != nil && spec.Name.Name == ident.Name) || (spec.Name == nil && info.Qualifier == ident.Name) {
						pkg = path
					}
				}
			}
			return false
		}, nil)
	}
	return text, pkg
}

// namesIn are the fields and definitions at the top of an imported package.
func (l *locator) namesIn(pkg string) []string {
	var names []string
	for _, imported := range l.instance.Imports {
		if imported.ImportPath != pkg && !strings.HasPrefix(imported.ImportPath, pkg+"@") && !strings.HasPrefix(imported.ImportPath, pkg+":") {
			continue
		}
		for _, file := range imported.Files {
			names = append(names, topFields(file)...)
		}
	}
	return names
}

// selectorText is a chain of names such as pins.tiny; empty for anything else.
func selectorText(expr ast.Expr) string {
	switch expr := expr.(type) {
	case *ast.Ident:
		return expr.Name
	case *ast.SelectorExpr:
		name, _, err := ast.LabelName(expr.Sel)
		if x := selectorText(expr.X); x != "" && err == nil {
			return x + "." + name
		}
	}
	return ""
}
