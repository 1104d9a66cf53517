package report

import (
	"encoding/json"
	"fmt"
	"html/template"
	"strings"

	"github.com/drumsbench/drumsbench/engine/markdown"
)

// Section is a part of a page that only some runs have something to say for: the
// tools' own times, slopes over slots, costs. It is where a new kind of result gets
// its place: write a function that makes the section of a run (or of all runs) from
// its record, receipts and manifest, nil where it has nothing, and add it to
// runSections (or siteSections) below. The page, the Markdown, tables.csv and
// report.json follow by themselves. Its numbers have the rules of all others: none
// of a run that does not count ([Run.Counts]), and each with its n.
type Section struct {
	// ID is the fragment on the page: lower-case letters, digits and hyphens, once a page.
	ID    string `json:"id"`
	Title string `json:"title"`
	// Text stands under the title, a paragraph each.
	Text    []string `json:"text,omitempty"`
	Tables  []Table  `json:"tables,omitempty"`
	Figures []Figure `json:"-"`
	// Notes are the caveats that go with it.
	Notes []string `json:"notes,omitempty"`
}

// Table of a section. The first cell of a row is its head. One that is long scrolls within itself.
type Table struct {
	// Name tells it from the others of the page; Caption is what is read above it, and
	// Short what its filter is labelled with, Name where empty.
	Name    string   `json:"name"`
	Short   string   `json:"-"`
	Caption string   `json:"caption"`
	Head    []Head   `json:"head"`
	Rows    [][]Cell `json:"rows"`
}

// Head of a column.
type Head struct {
	Text string `json:"text"`
	// Number is set flush right.
	Number bool `json:"number,omitempty"`
}

// Cell of a table.
type Cell struct {
	Text string `json:"text"`
	// Raw is what it sorts by and what programs get; Text where empty.
	Raw string `json:"raw,omitempty"`
	// Badge shows the text as a state or verdict.
	Badge bool `json:"-"`
	// Link is a path from the page.
	Link string `json:"-"`
}

// Figure of a section: SVG of distribution, byRollout or intervals, with its key.
type Figure struct {
	Title, Caption string
	SVG            template.HTML
	Keys           []seriesKey
}

// runSections are the sections of a run's page, in this order.
var runSections = []func(*Run) (*Section, error){interruptedSection, branchesSection, resetsSection, toolsSection, needsSection, hostSection}

// siteSections are those of the benchmark page; runs are in the order of their start.
var siteSections = []func([]*Run) (*Section, error){attemptsSection, densitySection, armsNeedSection, samenessSection, askedSection}

// gather has each function look at v.
func gather[T any](v T, functions []func(T) (*Section, error)) (list []Section, err error) {
	for _, f := range functions {
		s, err := f(v)
		if err != nil {
			return nil, err
		}
		if s == nil {
			continue
		}
		if len(s.Tables)+len(s.Figures)+len(s.Text) == 0 {
			return nil, fmt.Errorf("section %s is empty", s.ID)
		}
		list = append(list, *s)
	}
	return list, nil
}

// value of a cell for programs.
func (c Cell) value() string {
	if c.Raw != "" {
		return c.Raw
	}
	return c.Text
}

// text, number and badge make cells.
func text(s string) Cell { return Cell{Text: s} }

func whole(n int) Cell { return Cell{Text: fmt.Sprint(n)} }

func badge[T ~string](s T) Cell { return Cell{Text: string(s), Badge: true} }

// heads are columns; a name that ends with # is of numbers.
func heads(names ...string) (list []Head) {
	for _, n := range names {
		name, number := strings.CutSuffix(n, "#")
		list = append(list, Head{name, number})
	}
	return list
}

// sectionsMarkdown is what a Markdown file has of sections; level is of their headings.
func sectionsMarkdown(b *strings.Builder, level string, list []Section, line func(...string)) {
	for _, s := range list {
		fmt.Fprintf(b, "\n%s %s\n", level, markdown.Escape(s.Title))
		for _, p := range s.Text {
			b.WriteString("\n" + markdown.Escape(p) + "\n")
		}
		for _, t := range s.Tables {
			b.WriteString("\n" + markdown.Escape(t.Caption) + "\n\n")
			var names, rules []string
			for _, h := range t.Head {
				names = append(names, h.Text)
				rules = append(rules, map[bool]string{false: "---", true: "---:"}[h.Number])
			}
			line(names...)
			b.WriteString("| " + strings.Join(rules, " | ") + " |\n")
			for _, r := range t.Rows {
				var cells []string
				for _, c := range r {
					cells = append(cells, c.Text)
				}
				line(cells...)
			}
		}
		for _, n := range s.Notes {
			b.WriteString("\n- note: " + markdown.Escape(n) + "\n")
		}
	}
}

// tables are the rows of tables.csv: a line for each cell but a row's head.
func tables(run string, list []Section) (rows [][]string) {
	for _, s := range list {
		for _, t := range s.Tables {
			for i, r := range t.Rows {
				for k := 1; k < len(r) && k < len(t.Head); k++ {
					rows = append(rows, []string{run, s.ID, t.Name, fmt.Sprint(i), r[0].value(), t.Head[k].Text, r[k].Text, r[k].value()})
				}
			}
		}
	}
	return rows
}

// gateOf is the gate that a step's parameters name, by step; of other steps nothing.
func (r *Run) gateOf(params string) string {
	var p struct{ Gate string }
	if json.Unmarshal([]byte(params), &p) != nil {
		return ""
	}
	return p.Gate
}
