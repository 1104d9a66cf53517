package compile

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/token"
)

// want is what the schema allows at one field, taken apart so that it can be told in words.
type want struct {
	literals []string // as JSON
	bounds   []string
	patterns []string
	kinds    cue.Kind
	// exec is a program and its arguments.
	exec bool
	// element is what any other list holds.
	element *want
}

// wantOf takes a constraint of the schema apart.
func wantOf(v cue.Value) want {
	var w want
	w.add(v, 0)
	return w
}

func (w *want) add(v cue.Value, depth int) {
	if depth > 8 { // the schema has no deeper constraint; a cycle ends here
		return
	}
	v = cue.Dereference(v)
	op, args := v.Expr()
	switch op {
	case cue.AndOp, cue.OrOp:
		for _, arg := range args {
			w.add(arg, depth+1)
		}
		return
	case cue.RegexMatchOp:
		if s, err := args[0].String(); err == nil {
			w.patterns = append(w.patterns, s)
		}
	case cue.GreaterThanOp, cue.GreaterThanEqualOp, cue.LessThanOp, cue.LessThanEqualOp:
		w.bounds = append(w.bounds, bound(op, args[0]))
	default:
		if v.IncompleteKind() == cue.ListKind {
			first := want{}
			if e := v.LookupPath(cue.MakePath(cue.Index(0))); e.Exists() {
				first.add(e, depth+1)
			}
			w.exec = w.exec || slices.Contains(first.patterns, ".")
			if any := v.LookupPath(cue.MakePath(cue.AnyIndex)); any.Exists() && !w.exec {
				element := wantOf(any)
				w.element = &element
			}
		} else if field, ok := v.Source().(*ast.Field); ok && v.IncompleteKind()&cue.NumberKind != 0 {
			w.addNumber(field.Value)
		} else if data, err := v.MarshalJSON(); err == nil {
			w.literals = append(w.literals, string(data))
		}
	}
	w.kinds |= v.IncompleteKind()
}

// addNumber reads the bounds of a number from its syntax: Expr does not take
// apart a disjunction of a default and a range.
func (w *want) addNumber(expr ast.Expr) {
	switch expr := expr.(type) {
	case *ast.ParenExpr:
		w.addNumber(expr.X)
	case *ast.BinaryExpr:
		w.addNumber(expr.X)
		w.addNumber(expr.Y)
	case *ast.UnaryExpr:
		if word, ok := boundWords[expr.Op]; ok {
			w.bounds = append(w.bounds, word+" "+literal(expr.X))
		}
	case *ast.BasicLit: // a default is told only where it is all there is
		w.literals = append(w.literals, expr.Value)
	}
}

var boundWords = map[token.Token]string{token.GTR: "above", token.GEQ: "at least", token.LSS: "below", token.LEQ: "at most"}

func bound(op cue.Op, limit cue.Value) string {
	word := map[cue.Op]token.Token{
		cue.GreaterThanOp: token.GTR, cue.GreaterThanEqualOp: token.GEQ,
		cue.LessThanOp: token.LSS, cue.LessThanEqualOp: token.LEQ,
	}[op]
	return fmt.Sprintf("%s %v", boundWords[word], limit)
}

// text says what is wanted; it follows the word "want".
func (w want) text() string {
	switch {
	case w.exec:
		return "a program and its arguments, as in [\"/bin/echo\", \"hello\"]"
	case w.element != nil:
		return "a list of " + w.element.text()
	case len(w.patterns) > 0:
		if form, ok := forms()[w.patterns[0]]; ok {
			return form.want
		}
		return "text that matches " + w.patterns[0]
	case len(w.bounds) > 0:
		return "a whole number " + strings.Join(w.bounds, " and ")
	case len(w.literals) > 0:
		return or(w.literals)
	}
	return kindText(w.kinds)
}

// or is "a, b or c", sorted out of duplicates.
func or(words []string) string {
	var unique []string
	for _, word := range words {
		if !slices.Contains(unique, word) {
			unique = append(unique, word)
		}
	}
	if len(unique) == 1 {
		return unique[0]
	}
	return strings.Join(unique[:len(unique)-1], ", ") + " or " + unique[len(unique)-1]
}

func kindText(k cue.Kind) string {
	var words []string
	for _, kind := range []struct {
		kind cue.Kind
		text string
	}{
		{cue.StructKind, "a struct"}, {cue.ListKind, "a list"}, {cue.StringKind, "text"},
		{cue.NumberKind, "a number"}, {cue.IntKind, "a whole number"}, {cue.BoolKind, "true or false"}, {cue.NullKind, "null"},
	} {
		if k&kind.kind == kind.kind {
			words = append(words, kind.text)
			k &^= kind.kind
		}
	}
	if len(words) == 0 {
		return "something else"
	}
	return or(words)
}

// hint is the remedy for a value, given as JSON, that is not what is wanted.
func (w want) hint(have string) string {
	var text string
	isText := json.Unmarshal([]byte(have), &text) == nil
	switch {
	case w.exec && isText && strings.TrimSpace(text) != "":
		words, err := json.Marshal(strings.Fields(text))
		if err == nil {
			return "there is no shell; write " + strings.ReplaceAll(string(words), `","`, `", "`)
		}
	case w.exec && strings.HasPrefix(have, "[") && have != "[]" && have != `[""]`:
		return "every argument is text in quotes"
	case len(w.patterns) > 0:
		if form, ok := forms()[w.patterns[0]]; ok && form.hint != nil {
			return form.hint(strings.Trim(have, `"`))
		}
	case w.kinds&(cue.IntKind|cue.BoolKind) != 0 && w.kinds&cue.StringKind == 0 && isText:
		if _, err := strconv.Atoi(text); err == nil || text == "true" || text == "false" {
			return "without quotes: " + text
		}
	case len(w.literals) > 0 && isText:
		var words []string
		for _, literal := range w.literals {
			words = append(words, strings.Trim(literal, `"`))
		}
		if near := nearest(text, words); near != "" {
			return fmt.Sprintf("did you mean %q?", near)
		}
	}
	return ""
}

// form is a named form of text in the schema, told in words.
type form struct {
	// definition of the schema that has this form, without "#"; or the pattern itself.
	definition, pattern string
	want                string
	// hint gets the text without its quotes; may be nil.
	hint func(have string) string
}

// forms by their regular expression, which is read from the schema.
var forms = sync.OnceValue(func() map[string]form {
	known := []form{
		{definition: "SHA256", want: "a SHA-256 digest: 64 lower-case hexadecimal digits", hint: hintSHA256},
		{definition: "Bytes", want: `a size such as "512MiB" or "4GiB", or "0"`, hint: hintBytes},
		{definition: "Duration", want: `a duration such as "250ms", "30s" or "2m"`, hint: hintDuration},
		{definition: "Amount", want: `a time such as "250ms", a size such as "64MiB", or a number such as "0.5", as text`},
		{definition: "Name", want: `a name: a lower-case letter, then at most 47 lower-case letters, digits and "-"`, hint: hintName},
		{definition: "GuestPath", want: "an absolute path in the guest", hint: hintGuestPath},
		{definition: "Time", want: `a time in UTC such as "2006-01-02T15:04:05Z"`},
		{definition: "Int64", want: "a whole number as text"},
		{definition: "Decimal", want: `a decimal number as text, such as "0.25"`},
		{definition: "Share", want: `a share from 0 to 1 as text, such as "0.25"`},
		{definition: "Date", want: `a day such as "2006-01-02"`},
		{pattern: ".", want: "text that is not empty"},
		{pattern: `^[^\x00]+\.qcow2$`, want: `the path of a file that ends in ".qcow2"`},
		{pattern: `^0[0-7]{3}$`, want: `a mode of four octal digits, such as "0644"`},
		{pattern: "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$", want: "a UUID in lower case"},
	}
	byPattern := map[string]form{}
	_, schema, err := newSchema()
	for _, f := range known {
		if f.definition != "" && err == nil {
			w := wantOf(schema.LookupPath(cue.MakePath(cue.Def(f.definition))))
			if len(w.patterns) == 1 {
				f.pattern = w.patterns[0]
			}
		}
		byPattern[f.pattern] = f
	}
	return byPattern
})

var hexDigits = regexp.MustCompile(`^[0-9a-fA-F]*$`)

func hintSHA256(have string) string {
	bare := strings.TrimPrefix(have, "sha256:")
	switch {
	case bare != have:
		return "write it without sha256:"
	case !hexDigits.MatchString(have):
		return "it has characters other than 0-9 and a-f"
	case len(have) != 64:
		return fmt.Sprintf("it has %d digits; sha256sum prints the whole digest", len(have))
	case have != strings.ToLower(have):
		return "write it in lower case"
	}
	return ""
}

var looseSize = regexp.MustCompile(`^\s*([0-9]+)\s*([kKmMgGtT])(i?)[bB]?\s*$`)

func hintBytes(have string) string {
	if parts := looseSize.FindStringSubmatch(have); parts != nil {
		if strings.Trim(parts[1], "0") == "" {
			return `nothing is "0"`
		}
		size := parts[1] + strings.ToUpper(parts[2]) + "iB"
		if parts[3] == "" {
			return fmt.Sprintf("%q is decimal or says too little: write %q", have, size)
		}
		return fmt.Sprintf("write %q", size)
	}
	if _, err := strconv.ParseUint(have, 10, 64); err == nil {
		return "a size has a unit: KiB, MiB, GiB or TiB"
	}
	return ""
}

func hintDuration(have string) string {
	if _, err := strconv.ParseFloat(have, 64); err == nil {
		return fmt.Sprintf("a duration has a unit: write \"%ss\"", have)
	}
	if d, err := time.ParseDuration(have); err == nil && d >= time.Millisecond {
		if d%time.Second == 0 {
			return fmt.Sprintf("one unit: write \"%ds\"", d/time.Second)
		}
		return fmt.Sprintf("one unit: write \"%dms\"", d/time.Millisecond)
	}
	return ""
}

var notInName = regexp.MustCompile(`[^a-z0-9]+`)

func hintName(have string) string {
	name := strings.Trim(notInName.ReplaceAllString(strings.ToLower(have), "-"), "-")
	name = strings.TrimLeft(name, "-0123456789")
	if len(name) > 48 {
		name = strings.TrimRight(name[:48], "-")
	}
	if name == "" {
		return ""
	}
	return fmt.Sprintf("write %q", name)
}

func hintGuestPath(have string) string {
	if have != "" && !strings.HasPrefix(have, "/") {
		return "an absolute path starts with /"
	}
	return ""
}

// suggestion is a hint for a name that is not among known.
func suggestion(name string, known []string) string {
	if near := nearest(name, known); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	if len(known) == 0 || len(known) > 24 {
		return ""
	}
	return "known here: " + strings.Join(known, ", ")
}

// nearest is the name with the least edit distance to name, if it is near
// enough to be meant: a third of the letters may differ, at least one.
func nearest(name string, known []string) string {
	best, distance := "", max(1, len(name)/3)+1
	for _, candidate := range known {
		if d := editDistance(strings.ToLower(name), strings.ToLower(candidate)); d < distance {
			best, distance = candidate, d
		}
	}
	return best
}

// editDistance counts inserted, deleted, replaced and swapped letters (optimal string alignment).
func editDistance(a, b string) int {
	x, y := []rune(a), []rune(b)
	rows := make([][]int, len(x)+1)
	for i := range rows {
		rows[i] = make([]int, len(y)+1)
		rows[i][0] = i
	}
	for j := range y {
		rows[0][j+1] = j + 1
	}
	for i := 1; i <= len(x); i++ {
		for j := 1; j <= len(y); j++ {
			cost := 1
			if x[i-1] == y[j-1] {
				cost = 0
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(x)][len(y)]
}
