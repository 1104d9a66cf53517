package report

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"image/png"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/compare"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/register"
	"github.com/drumsbench/drumsbench/engine/wholefile"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

//go:embed assets/style.css
var style string

//go:embed assets/table.js
var script string

//go:embed assets/*.html
var assets embed.FS

// Input of a site.
type Input struct {
	Runs        []*Run
	None        []NoRecord
	Comparisons []bench.Comparison
	// Uncompared are runs that a comparison could not read.
	Uncompared []NoRecord
	// Experiments are what Judge made of the registrations.
	Experiments bench.Judgements
	// Program that draws, as pages name it.
	Program string
}

// page is what all pages share.
type page struct {
	Title, Root, Policy, Program string
	Style, Script                template.HTML
}

// policy lets a page show pictures of its own site, and the one style and the one
// script that it carries. It asks nobody for anything.
func policy() string {
	hash := func(text string) string {
		sum := sha256.Sum256([]byte(text))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	return "default-src 'none'; img-src 'self' file:; style-src " + hash(style) + "; script-src " + hash(script) + "; base-uri 'none'; form-action 'none'"
}

func (in Input) page(title, root string) page {
	return page{Title: title, Root: root, Policy: policy(), Program: in.Program,
		Style:  template.HTML("<style>" + style + "</style>"),    //nolint:gosec // our own file
		Script: template.HTML("<script>" + script + "</script>")} //nolint:gosec // our own file
}

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"add":    func(a, b float64) float64 { return a + b },
	"digest": func(d bench.SHA256) string { return string(d[:min(12, len(d))]) },
}).ParseFS(assets, "assets/*.html"))

// stateCount is a state with how many records have it.
type stateCount struct {
	State   State
	Count   int
	Meaning string
}

// ranStates are those that a run can have: what is planned was not run.
var ranStates = slices.DeleteFunc(slices.Clone(States), func(s State) bool { return s == Planned })

// armRow is an arm with a reset on the index.
type armRow struct {
	Arm, What, Reset, Role, Manifests, Differences string
	Records                                        int
	Counts                                         []int
	Emulated                                       bool
}

// kindRow is a metric on the index.
type kindRow struct {
	Title, Unit, Note string
	Count             int
}

// index is the benchmark page.
type index struct {
	Page        page
	Exists      string
	States      []stateCount
	Ran         []State
	Arms        []armRow
	Kinds       []kindRow
	Runs        []*view
	Comparisons []*comparison
	Experiments []experimentView
	Sections    []Section
	Judging     string
	None        []NoRecord
	Uncompared  []NoRecord
	Method      string
}

// Write makes the site in dir, which must not exist or be empty: ErrRefused
// otherwise. Runs are in the order of their start, the same inputs give the same
// bytes.
func Write(dir string, in Input) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &engine.Error{Op: "write report", Err: err}
	}
	if len(entries) > 0 {
		return &engine.Error{Op: "write report", Err: fmt.Errorf("%w: %s is not empty", engine.ErrRefused, dir), Hint: "name another folder with --out"}
	}
	w := writer{dir: dir}
	runs := slices.Clone(in.Runs)
	slices.SortStableFunc(runs, func(a, b *Run) int {
		return strings.Compare(string(a.Record.Started)+a.Record.Run, string(b.Record.Started)+b.Record.Run)
	})
	idx := index{Page: in.page("Benchmarks", ""), None: in.None, Uncompared: in.Uncompared, Method: statistics, Ran: ranStates}
	slugs := map[string]bool{}
	for _, r := range runs {
		slug := unique(slugs, slugOf(r.Record))
		evidence, err := w.evidence(r, slug)
		if err != nil {
			return err
		}
		v, err := see(r, in.page(r.Record.Run, "../../"), slug, evidence)
		if err != nil {
			return &engine.Error{Op: "draw run " + r.Record.Run, Err: err}
		}
		if err := w.page(filepath.Join("runs", slug, "index.html"), "run", v); err != nil {
			return err
		}
		idx.Runs = append(idx.Runs, v)
	}
	for _, c := range in.Comparisons {
		v, err := seeComparison(c, idx.Runs, in, unique(slugs, comparisonSlug(c)))
		if err != nil {
			return &engine.Error{Op: "draw comparison", Err: err}
		}
		if err := w.page(v.Path, "comparison", v); err != nil {
			return err
		}
		idx.Comparisons = append(idx.Comparisons, v)
	}
	for _, e := range in.Experiments.Experiments {
		idx.Experiments = append(idx.Experiments, seeExperiment(e))
	}
	idx.Judging = in.Experiments.Method
	idx.count()
	if idx.Sections, err = gather(runs, siteSections); err != nil {
		return &engine.Error{Op: "draw index", Err: err}
	}
	if err := w.page("index.html", "index", idx); err != nil {
		return err
	}
	return w.data(idx, in)
}

// exists says in a sentence what there is.
func (x *index) exists() string {
	if len(x.Runs) == 0 {
		return "There is no record yet, and so no number."
	}
	last := ""
	arms := map[string]bool{}
	for _, v := range x.Runs {
		last = max(last, string(v.Record.Ended))
		arms[v.Record.Arm] = true
	}
	allowed := 0
	for _, c := range x.Comparisons {
		if c.C.Verdict == compare.Allowed {
			allowed++
		}
	}
	plural := func(n int, what string) string {
		if n == 1 {
			return "1 " + what
		}
		return fmt.Sprintf("%d %ss", n, what)
	}
	text := fmt.Sprintf("As of %.10s: %s of %s, %s.", last, plural(len(x.Runs), "record"), plural(len(arms), "arm"), plural(allowed, "comparison"))
	if n := len(x.Comparisons) - allowed; n > 0 {
		text = strings.TrimSuffix(text, ".") + fmt.Sprintf(" and %s to compare.", plural(n, "refusal"))
	}
	if allowed == 0 {
		text += " No two sides have been compared: no number here says that one is better than another."
	}
	return text
}

// count fills the tables of the index.
func (x *index) count() {
	x.Exists = x.exists()
	for _, s := range States {
		n := 0
		for _, v := range x.Runs {
			if v.State == s {
				n++
			}
		}
		if s == Planned {
			for _, e := range x.Experiments {
				if e.State == register.Planned {
					n++
				}
			}
		}
		x.States = append(x.States, stateCount{s, n, s.Meaning()})
	}
	type key struct{ arm, reset string }
	var order []key
	by := map[key][]*view{}
	for _, v := range x.Runs {
		k := key{v.Record.Arm, v.Record.Reset}
		if by[k] == nil {
			order = append(order, k)
		}
		by[k] = append(by[k], v)
	}
	for _, k := range order {
		row := armRow{Arm: k.arm, What: cmp.Or(armKinds[k.arm], "–"), Reset: k.reset, Records: len(by[k]),
			Role: map[string]string{"restore": "measured", "cold": "control"}[k.reset]}
		var manifests, differences []string
		for _, s := range ranStates {
			n := 0
			for _, v := range by[k] {
				if v.State == s {
					n++
				}
			}
			row.Counts = append(row.Counts, n)
		}
		for _, v := range by[k] {
			row.Emulated = row.Emulated || v.Emulated
			if !slices.Contains(manifests, v.Record.Manifest) {
				manifests = append(manifests, v.Record.Manifest)
			}
			for _, d := range v.Record.Differences {
				if !slices.Contains(differences, d.Name) {
					differences = append(differences, d.Name)
				}
			}
		}
		row.Manifests, row.Differences = strings.Join(manifests, ", "), strings.Join(differences, ", ")
		x.Arms = append(x.Arms, row)
	}
	seen := map[string]int{}
	for _, v := range x.Runs {
		for _, m := range v.Metrics {
			i, known := seen[m.Title]
			if !known {
				i, seen[m.Title] = len(x.Kinds), len(x.Kinds)
				note := m.Note
				if m.Unit == "share" {
					note = "of the measured rollouts"
				}
				_, unit := scaled(0, m.Unit)
				x.Kinds = append(x.Kinds, kindRow{Title: m.Title, Unit: unit, Note: note})
			}
			x.Kinds[i].Count++
		}
	}
}

// slugOf names a run's folder: its name as a path may have it, and the digest
// that tells it from others of that name.
func slugOf(r bench.Record) string {
	return plain(r.Run) + "-" + plain(string(r.Digests["events"])[:min(8, len(r.Digests["events"]))])
}

// plain is text as a folder and a fragment may have it.
func plain(text string) string {
	name := strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-':
			return c
		case c >= 'A' && c <= 'Z':
			return c + 'a' - 'A'
		}
		return '-'
	}, text)
	name = strings.Trim(name, "-")
	if name == "" || name[0] >= '0' && name[0] <= '9' {
		name = "r-" + name
	}
	return name[:min(80, len(name))]
}

func unique(used map[string]bool, slug string) string {
	name := slug
	for i := 2; used[name]; i++ {
		name = fmt.Sprintf("%s-%d", slug, i)
	}
	used[name] = true
	return name
}

// writer writes below one folder.
type writer struct{ dir string }

func (w writer) file(name string, data []byte) error {
	path := filepath.Join(w.dir, name)
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = wholefile.Write(path, data, 0o644)
	}
	if err != nil {
		return &engine.Error{Op: "write report", Err: err}
	}
	return nil
}

func (w writer) page(name, template string, v any) error {
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, template, v); err != nil {
		return &engine.Error{Op: "draw " + name, Err: err}
	}
	return w.file(name, []byte(strings.Map(seen, b.String())))
}

// seen takes out of a page what a reader does not see and a terminal or the order
// of the text obeys.
func seen(r rune) rune {
	switch {
	case r == '\n' || r == '\t':
		return r
	case unicode.In(r, unicode.Cc, unicode.Bidi_Control):
		return unicode.ReplacementChar
	}
	return r
}

// evidence copies a run's files and evidence into the site. A file is what its
// bytes are, not what its name says: a picture only if it decodes as one, else
// text, so that nothing a guest wrote can be a page.
func (w writer) evidence(r *Run, slug string) (map[string]file, error) {
	folder := filepath.Join("runs", slug)
	for _, name := range append(slices.Clone(sourceFiles), record.ReviewsFile) {
		data, err := record.ReadRegular(filepath.Join(r.Dir, name))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, record.ErrIrregular) {
			continue // the check of the directory has named it
		}
		if err != nil {
			return nil, &engine.Error{Op: "copy " + name, Err: err}
		}
		if err := w.file(filepath.Join(folder, name), data); err != nil {
			return nil, err
		}
	}
	store := record.OpenEvidence(r.Dir)
	all := map[string]file{}
	for _, receipt := range r.Receipts {
		for _, e := range receipt.Evidence {
			id := evidenceID(e)
			if _, done := all[id]; done {
				continue
			}
			data, err := record.ReadRegular(store.Path(e))
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, record.ErrIrregular) {
				return nil, &engine.Error{Op: "copy evidence", Err: err}
			}
			if err != nil || canonical.Sum(data) != e.Sha256 {
				all[id] = file{} // the check of the directory has named it
				continue
			}
			f := file{Name: e.Name}
			end := ".txt"
			if c, err := png.DecodeConfig(bytes.NewReader(data)); err == nil {
				end, f.Width, f.Height = ".png", c.Width, c.Height
			}
			f.Path = "evidence/" + string(e.Sha256) + end
			if err := w.file(filepath.Join(folder, f.Path), data); err != nil {
				return nil, err
			}
			all[id] = f
		}
	}
	return all, nil
}
