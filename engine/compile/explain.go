package compile

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cuelang.org/go/cue/ast"
	cueerrors "cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/load"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/token"
)

// How a mistake is explained. CUE's own errors speak of the place where two
// constraints met, which is often a line of the schema, and stop at the first
// kind of mistake. So a package that failed is evaluated once more with a schema
// that allows everything: what remains is what the person wrote, with the
// person's positions, and it is compared with the schema field by field (walk).
// CUE's words are shown only where that comparison finds nothing.

// explain turns the failure of decode into Problems.
func (src *source) explain(definition string, cause error) error {
	var loaded cueerrors.Error
	if !errors.As(cause, &loaded) {
		return cause
	}
	if src.instance == nil || src.instance.Err != nil {
		return src.loadProblems(cause)
	}
	plain, _, _, err := src.evaluate(openSchema(), openDefinitions)
	if err != nil {
		return src.loadProblems(cause)
	}
	failed := pathsOf(cause)
	at := newLocator(src.module.root, src.instance)

	var problems Problems
	conflicts := false
	own := cueerrors.Errors(plain.Validate())
	for i := 0; i < len(own); i++ {
		e := own[i]
		if !failed[pathString(e.Path())] {
			continue // only true of the open schema
		}
		if n := alternatives(e); n > 0 && i+n < len(own) {
			problems = append(problems, at.noneOf(own[i:i+n+1]))
			i += n
			continue
		}
		conflicts = conflicts || isConflict(e)
		problems = append(problems, at.userProblem(e))
	}
	if files := at.filesWith("apiVersion"); conflicts && len(files) > 1 {
		return Problems{twoManifests(files)}
	}
	w, err := newWalk(at, failed)
	if err != nil {
		return err
	}
	problems = append(problems, w.check(definition, plain)...)
	if len(problems) == 0 {
		for _, e := range cueerrors.Errors(cause) {
			problems = append(problems, at.userProblem(e))
		}
	}
	return tidy(problems)
}

// openSchema is the embedded schema's overlay with every definition allowing everything.
func openSchema() map[string]load.Source {
	files := map[string]load.Source{}
	for name, source := range schemaFiles() {
		files[name] = source
	}
	syntax, err := schemaSyntax()
	if err != nil {
		return files // the closed schema failed in the same way before
	}
	for _, file := range syntax {
		open := &ast.File{Decls: []ast.Decl{&ast.Package{Name: ast.NewIdent("bench")}}}
		for _, name := range topFields(file) {
			open.Decls = append(open.Decls, &ast.Field{Label: ast.NewIdent(openName(name)), Value: ast.NewIdent("_")})
		}
		files[file.Filename] = load.FromFile(open)
	}
	return files
}

// openPrefix stands for the # of a definition in the open evaluation: a person's
// own definitions close as the schema's do, and would hide what is not in them.
const openPrefix = "drumsbench_definition_"

func openName(name string) string {
	if rest, ok := strings.CutPrefix(name, "#"); ok && rest != "" {
		return openPrefix + rest
	}
	return name
}

// openDefinitions parses a file with all definitions turned into fields.
func openDefinitions(name string, source any, config parser.Config) (*ast.File, error) {
	file, err := parser.ParseFile(name, source, config)
	if err != nil {
		return file, err
	}
	ast.Walk(file, func(n ast.Node) bool {
		if ident, ok := n.(*ast.Ident); ok {
			ident.Name = openName(ident.Name)
		}
		return true
	}, nil)
	return file, nil
}

// topFields are the names of the fields and definitions at the top of a file.
func topFields(file *ast.File) []string {
	var names []string
	for _, decl := range file.Decls {
		if field, ok := decl.(*ast.Field); ok {
			if name, _, err := ast.LabelName(field.Label); err == nil {
				names = append(names, name)
			}
		}
	}
	return names
}

func twoManifests(files []string) Problem {
	return Problem{
		File: files[1], Text: "two manifests in one package: " + files[0] + " has one too",
		Hint: "put each manifest into a folder of its own, or name one file",
	}
}

func isConflict(e cueerrors.Error) bool {
	format, _ := e.Msg()
	return strings.HasPrefix(format, "conflicting values")
}

// alternatives is how many errors follow e that belong to it: one for each
// alternative of a disjunction that was not met.
func alternatives(e cueerrors.Error) int {
	format, args := e.Msg()
	if strings.Contains(format, "errors in empty disjunction") && len(args) == 1 {
		if n, ok := args[0].(int); ok {
			return n
		}
	}
	return 0
}

// loadProblems are the mistakes that keep a package from being read at all.
// Of each file only the first is shown: those after a syntax error are its echo.
func (src *source) loadProblems(cause error) error {
	at := newLocator(src.module.root, src.instance)
	var problems Problems
	seen := map[string]bool{}
	for _, e := range cueerrors.Errors(cause) {
		p := at.userProblem(e)
		if p.File == "" {
			p.File = display(src.dir)
		}
		if e.Position().IsValid() && seen[p.File] && len(e.Path()) == 0 {
			continue
		}
		seen[p.File] = true
		problems = append(problems, src.explainLoad(p, e))
	}
	return tidy(problems)
}

// explainLoad puts the loader's words into ours.
func (src *source) explainLoad(p Problem, e cueerrors.Error) Problem {
	p.Path = "" // the loader gives the name of the package here
	text := e.Error()
	var packages *load.MultiplePackageError
	var none *load.NoFilesError
	switch {
	case errors.As(e, &packages):
		p.File, p.Line, p.Col = display(filepath.Join(src.dir, packages.Files[1])), 0, 0
		p.Text = fmt.Sprintf("two packages in one folder: %s is of package %s, %s of package %s",
			packages.Files[0], packages.Packages[0], packages.Files[1], packages.Packages[1])
		p.Hint = "put each manifest into a folder of its own, or name one file"
	case errors.As(e, &none) || strings.Contains(text, "matched no packages"):
		p.File, p.Line, p.Col = display(src.dir), 0, 0
		p.Text = "no CUE file in this folder"
		p.Hint = "name the folder that holds the manifest"
	case strings.Contains(text, "import failed"):
		name := quoted(text)
		p.Text = fmt.Sprintf("cannot import %q: there is no such package here", name)
		switch {
		case strings.HasPrefix(name, src.moduleName()):
			p.Hint = fmt.Sprintf("its folder would be %s", display(filepath.Join(src.module.root, strings.TrimPrefix(name, src.moduleName()))))
		default:
			p.Hint = "nothing is fetched: put the package into this repository, or replace its module by a folder in cue.mod/local-module.cue"
		}
		if strings.Contains(text, "import cycle") {
			p.Text, p.Hint = "import cycle", "two packages import each other"
		}
	case strings.Contains(text, "for injection tag"):
		tag := quoted(text)
		p.File, p.Line, p.Col = src.tagPosition(tag)
		p.Text = fmt.Sprintf("the tag %s has the wrong type: have %q", tag, src.tags[tag])
		p.Hint = "the field's @tag says which type it takes"
	case strings.Contains(text, "no tag for"):
		p.File, p.Line, p.Col = display(src.dir), 0, 0
		p.Text = fmt.Sprintf("no field here carries @tag(%s)", quoted(text))
		if tags := src.tagNames(); len(tags) > 0 {
			p.Hint = "tags here: " + strings.Join(tags, ", ")
		}
	}
	return p
}

// moduleName is the import path of the module, without its major version.
func (src *source) moduleName() string {
	name, _, _ := strings.Cut(src.instance.Module, "@")
	return name
}

// eachTag calls do for each field of the package that carries a @tag.
func (src *source) eachTag(do func(tag string, field *ast.Field)) {
	for _, file := range src.instance.Files {
		ast.Walk(file, func(n ast.Node) bool {
			if field, ok := n.(*ast.Field); ok {
				for _, attribute := range field.Attrs {
					if key, body := attribute.Split(); key == "tag" {
						tag, _, _ := strings.Cut(body, ",")
						do(strings.TrimSpace(tag), field)
					}
				}
			}
			return true
		}, nil)
	}
}

// tagNames are the keys of all @tag attributes of the package, sorted.
func (src *source) tagNames() []string {
	var names []string
	src.eachTag(func(tag string, _ *ast.Field) { names = append(names, tag) })
	slices.Sort(names)
	return slices.Compact(names)
}

// tagPosition is where the value stands that tag would replace.
func (src *source) tagPosition(tag string) (file string, line, col int) {
	file = display(src.dir)
	src.eachTag(func(name string, field *ast.Field) {
		if name == tag {
			pos := field.Value.Pos()
			file, line, col = display(pos.Filename()), pos.Line(), pos.Column()
		}
	})
	return file, line, col
}

// loadProblems are the mistakes of a file that belongs to no package, such as module.cue.
func loadProblems(file string, err error) error {
	var problems Problems
	for _, e := range cueerrors.Errors(err) {
		p := Problem{File: display(file), Path: pathString(e.Path()), Text: textOf(e)}
		if at := firstPosition(e); at.IsValid() {
			p.File, p.Line, p.Col = display(at.Filename()), at.Line(), at.Column()
		}
		problems = append(problems, p)
	}
	return tidy(problems)
}

// place gives problems that have only a path the position of that path in the person's files.
func (src *source) place(problems Problems) Problems {
	if len(problems) == 0 {
		return nil
	}
	at := newLocator(src.module.root, src.instance)
	for i, p := range problems {
		found := at.find(parsePath(p.Path))
		problems[i].File, problems[i].Line, problems[i].Col = at.position(found.value())
	}
	return tidy(problems)
}

// tidy sorts problems in the order of the files and drops what is said twice, and
// strings that take in a value which is itself a problem.
func tidy(problems Problems) Problems {
	follows := func(p Problem) bool { return strings.HasPrefix(p.Text, "invalid interpolation: ") }
	if !slices.ContainsFunc(problems, follows) || slices.ContainsFunc(problems, func(p Problem) bool { return !follows(p) }) {
		problems = slices.DeleteFunc(problems, follows)
	}
	order := map[string]int{}
	for _, p := range problems {
		if _, ok := order[p.File]; !ok {
			order[p.File] = len(order)
		}
	}
	slices.SortStableFunc(problems, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(order[a.File], order[b.File]),
			cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col),
			cmp.Compare(a.Path, b.Path), cmp.Compare(a.Text, b.Text),
		)
	})
	return slices.Compact(problems)
}

// pathsOf are the paths at which an evaluation failed.
func pathsOf(err error) map[string]bool {
	paths := map[string]bool{}
	for _, e := range cueerrors.Errors(err) {
		paths[pathString(e.Path())] = true
	}
	return paths
}

// textOf is an error's own words, without its path and positions.
func textOf(e cueerrors.Error) string {
	format, args := e.Msg()
	text := fmt.Sprintf(format, args...)
	if len(args) == 0 || strings.TrimSpace(text) == "" { // a wrapped error says only in Error what it is about
		text = strings.TrimPrefix(e.Error(), strings.Join(e.Path(), ".")+": ")
	}
	return strings.ReplaceAll(text, openPrefix, "#")
}

// quoted is the first quoted word of text.
func quoted(text string) string {
	_, rest, _ := strings.Cut(text, `"`)
	word, _, _ := strings.Cut(rest, `"`)
	return word
}

func firstPosition(e cueerrors.Error) token.Pos {
	if e.Position().IsValid() {
		return e.Position()
	}
	for _, pos := range e.InputPositions() {
		if pos.IsValid() {
			return pos
		}
	}
	return token.NoPos
}

// display is a path as a person would write it: relative if it lies below the working directory.
func display(path string) string {
	wd, err := os.Getwd()
	if err != nil || !filepath.IsAbs(path) {
		return path
	}
	rel, err := filepath.Rel(wd, path)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return path
	}
	return rel
}

// pathString is a path as people write it: guest.services[0].exec.
func pathString(path []string) string {
	var b strings.Builder
	for _, label := range path {
		switch {
		case label != "" && strings.Trim(label, "0123456789") == "":
			b.WriteString("[" + label + "]")
		case b.Len() > 0:
			b.WriteString("." + label)
		default:
			b.WriteString(label)
		}
	}
	return b.String()
}

// parsePath is the inverse of pathString.
func parsePath(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '.' || r == '[' || r == ']' })
}
