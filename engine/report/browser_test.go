package report

import (
	"context"
	_ "embed" // the checks
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compare"
	"github.com/drumsbench/drumsbench/engine/record/recordtest"
	"github.com/drumsbench/drumsbench/engine/register"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Checks of a page from inside the browser, in the way of axe: each returns what is wrong.
//
//go:embed testdata/checks.js
var checks string

// browser is a real headless Chromium that says what the pages did.
type browser struct {
	ctx context.Context
	mu  sync.Mutex
	// said are console messages and exceptions, asked every URL that was asked for.
	said, asked []string
}

// open starts one; a machine without Chromium fails the test, since no page was seen.
func openBrowser(t *testing.T) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("%v: scripts/setup installs chromium", err)
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(path))
	ctx, stop := context.WithTimeout(context.Background(), 100*time.Second) // a quarter of that where the machine is quiet
	t.Cleanup(stop)
	ctx, stopAll := chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(stopAll)
	ctx, stopTab := chromedp.NewContext(ctx)
	t.Cleanup(stopTab)
	b := &browser{ctx: ctx}
	err = chromedp.Listen(ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *cdpruntime.EventConsoleAPICalled:
			b.said = append(b.said, fmt.Sprintf("console: %v", e.Type))
		case *cdpruntime.EventExceptionThrown:
			b.said = append(b.said, "exception: "+e.ExceptionDetails.Text)
		case *cdplog.EventEntryAdded:
			b.said = append(b.said, fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL))
		case *network.EventRequestWillBeSent:
			b.asked = append(b.asked, e.Request.URL)
		}
	})
	if err != nil {
		t.Fatalf("start chromium: %v", err)
	}
	b.do(t, ask(network.Enable, network.EnableParams{}), ask(cdplog.Enable, cdp.Empty{}), ask(cdpruntime.Enable, cdp.Empty{}))
	return b
}

// ask is a command of the protocol.
func ask[P any](c cdp.Command[P, cdp.Empty], params P) chromedp.Action[chromedp.Void] {
	return func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, target, c, params)
		return chromedp.Void{}, err
	}
}

func (b *browser) do(t *testing.T, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

// value of an expression on the page.
func value[T any](t *testing.T, b *browser, expression string) T {
	t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		t.Fatalf("%v: %.200s", err, expression)
	}
	return v
}

// screen is a size and a colour scheme.
func screen(width, height int64, phone bool, scheme string) []chromedp.Action[chromedp.Void] {
	return []chromedp.Action[chromedp.Void]{
		ask(emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1, Mobile: phone}),
		ask(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}),
	}
}

func fileURL(path string) string { return (&url.URL{Scheme: "file", Path: path}).String() }

// The site in a real browser: no message, no request that leaves it, every picture
// loads, the checks of accessibility hold in light and dark and on a phone.
func TestInBrowser(t *testing.T) {
	o := recordtest.Run{Rollouts: 7, Warmups: 1, Bars: usableBar("0.000001ms")} // as the run below
	first := registration(t, o)
	whole := load(t, recordtest.Run{Bars: o.Bars, Registration: first.JSON, Name: "run/whole", Rollouts: 7, Controls: true, Warmups: 1, Pictures: true, Tools: true, Evidence: map[string][]byte{"have.json": []byte("{}")},
		Settings: map[string]string{"locks": "repair"}, Differences: []bench.Difference{{Name: "kernel", Text: "the slot shares the host's kernel"}}})
	hurt := load(t, recordtest.Run{Name: "run/" + hostile[1], Gate: "locks", Verdict: engine.Fail, Findings: []bench.Finding{{Verdict: engine.Fail, Subject: hostile[0], Text: hostile[7], Want: "held", Have: "not held", Hint: "repair it"}}})
	emulated := load(t, recordtest.Run{Name: "run/emulated", Rollouts: 6, Facts: []bench.Fact{{Name: "accelerator", Known: true, Value: "tcg", Source: "query-kvm"}}})
	both := filepath.Join(t.TempDir(), "a site #1 %41") // a path that a careless link breaks on
	dir := filepath.Join(both, "runs and comparisons")
	in := Input{Runs: []*Run{whole, hurt, emulated}, None: []NoRecord{{Dir: "lost", Reason: "it has no record"}}, Comparisons: comparisons(whole), Program: "test"}
	// An experiment that failed and was amended, and one that is planned.
	o.Bars = usableBar("1h")
	second, err := register.Amend(first, o.Plans(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	in.Judge(register.Known{Registrations: []register.Registered{second}}, []register.Registered{registration(t, recordtest.Run{Manifest: "other", Bars: o.Bars})}, compare.Options{Program: recordtest.Program})
	if len(in.Experiments.Experiments) != 2 || len(in.Experiments.Experiments[0].Judgements) != 2 {
		t.Fatalf("%+v", in.Experiments)
	}
	if err := Write(dir, in); err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(dir, "*", "*", "index.html"))
	more, merr := filepath.Glob(filepath.Join(dir, "comparisons", "*.html"))
	if err != nil || merr != nil || len(pages) != 3 || len(more) != 2 {
		t.Fatal(err, merr, pages, more)
	}
	pages = slices.Concat([]string{filepath.Join(dir, "index.html")}, pages, more)

	b := openBrowser(t)
	b.planted(t)
	shots := os.Getenv("DRUMSBENCH_SCREENSHOTS") // a folder to look at them
	b.look(t, dir, "", shots, pages)
	b.tables(t, pages[0])
	b.keyboard(t, pages[0])
	b.withoutScripts(t, pages[slices.IndexFunc(pages, func(p string) bool { return strings.Contains(p, "whole") })])
	pages = append(pages, b.sections(t, filepath.Join(both, "sections"), shots)...)
	real := os.Getenv("DRUMSBENCH_SITE")
	b.site(t, real, shots)

	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.said {
		t.Errorf("the browser said %s", s)
	}
	if len(b.asked) < len(pages) {
		t.Errorf("the browser asked for %d files", len(b.asked))
	}
	for _, u := range b.asked {
		if !strings.HasPrefix(u, fileURL(both)+"/") && (real == "" || !strings.HasPrefix(u, fileURL(real)+"/")) {
			t.Errorf("the site asked for %s", u)
		}
	}
}

// site has a site that drumsbench report wrote of real runs looked at in the same
// way, if there is one: index, comparisons and the first runs. README.md has a picture of it.
func (b *browser) site(t *testing.T, dir, shots string) {
	t.Helper()
	if dir == "" {
		return
	}
	checkLinks(t, read(t, dir))
	comparisons, err := filepath.Glob(filepath.Join(dir, "comparisons", "*.html"))
	runs, rerr := filepath.Glob(filepath.Join(dir, "runs", "*", "index.html"))
	if err != nil || rerr != nil {
		t.Fatal(err, rerr)
	}
	b.look(t, dir, "site-", shots, slices.Concat([]string{filepath.Join(dir, "index.html")}, comparisons[:min(3, len(comparisons))], runs[:min(6, len(runs))]))
}

func navigate(path string) chromedp.Action[chromedp.Void] { return chromedp.Navigate(fileURL(path)) }

// look has the checks judge pages of a site on a dark phone and on a light desk, and
// leaves pictures of them in the folder shots, if there is one.
func (b *browser) look(t *testing.T, dir, prefix, shots string, pages []string) {
	t.Helper()
	for _, look := range []struct {
		name, scheme  string
		width, height int64
		phone         bool
	}{{"phone", "dark", 390, 844, true}, {"desktop", "light", 1280, 900, false}} {
		for i, path := range pages {
			where := fmt.Sprintf("%s %s %s", look.name, look.scheme, strings.TrimPrefix(path, dir))
			b.do(t, append(screen(look.width, look.height, look.phone, look.scheme), navigate(path))...)
			var found []string
			if text := value[string](t, b, checks); json.Unmarshal([]byte(text), &found) != nil {
				t.Fatal(text)
			}
			for _, f := range found {
				t.Errorf("%s: %s", where, f)
			}
			if shots != "" {
				picture, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(shots, fmt.Sprintf("%s%s-%s-%d.png", prefix, look.name, look.scheme, i)), picture, 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// planted: a page with a fault for each check is found to have them all.
func (b *browser) planted(t *testing.T) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "faults.html")
	if err := os.WriteFile(path, []byte(faulty), 0o644); err != nil {
		t.Fatal(err)
	}
	b.do(t, append(screen(390, 844, true, "light"), chromedp.Navigate(fileURL(path)))...)
	found := value[string](t, b, checks)
	for _, want := range []string{"contrast 1.", "of marks of class bar", "no name", "no label", "no alternative text", "svg without a name", "region without a name",
		"an id that is not there", "no language", "no title", "not one main", "level of headings", "without a caption", "without heads", "list with something else",
		"id twice", "cannot be focused", "wider than the screen", "target of", "does not load", "without bars", "plot without marks"} {
		if !strings.Contains(found, want) {
			t.Errorf("the checks do not see a planted fault: %s, in %s", want, found)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.said, b.asked = nil, nil // the planted picture
}

const faulty = `<!doctype html><meta name="viewport" content="width=device-width"><h1>a</h1><h1>b</h1><h3>c</h3>
<p style="color:#ddd;background:#fff">pale</p><a href="#x"></a><input><img src="nowhere.png"><svg width="9" height="9"></svg>
<svg class="gantt" role="img" aria-label="x"></svg><svg class="plot" role="img" aria-label="x"></svg>
<svg role="img" aria-label="y" width="9" height="9"><rect class="bar" fill="#ccc" width="9" height="9"/></svg>
<div role="region"></div><div aria-labelledby="gone"></div><table><tr><td>1</table><ul><p>x</p></ul><b id="i"></b><b id="i"></b>
<div style="overflow-x:auto;width:50px"><div style="width:500px">x</div></div><div style="width:2000px">wide</div><button style="all:unset;font-size:4px">b</button>`

// tables sort by a click, numbers as numbers, and filter by words.
func (b *browser) tables(t *testing.T, index string) {
	t.Helper()
	column := `Array.from(document.querySelectorAll("#all-numbers tbody tr")).map(r => r.cells[5].dataset.v)`
	head := `document.querySelectorAll("#all-numbers thead th")[5]`
	click := head + `.querySelector("button").click()`
	b.do(t, chromedp.Navigate(fileURL(index)))
	value[*int](t, b, click)
	up, order := value[[]string](t, b, column), value[string](t, b, head+`.getAttribute("aria-sort")`)
	value[*int](t, b, click)
	down := value[[]string](t, b, column)
	numbers := func(list []string) (out []float64) {
		for _, s := range list {
			var v float64
			if _, err := fmt.Sscan(s, &v); err == nil {
				out = append(out, v)
			}
		}
		return out
	}
	if a := numbers(up); len(a) < 10 || !slices.IsSorted(a) || order != "ascending" {
		t.Errorf("sorted %s: %v", order, a)
	}
	d := numbers(down)
	slices.Reverse(d)
	if !slices.IsSorted(d) {
		t.Errorf("sorted downwards: %v", down)
	}
	visible := `Array.from(document.querySelectorAll("#all-numbers tbody tr")).filter(r => !r.hidden).length`
	filter := `(() => { const f = Array.from(document.querySelectorAll("label")).find(l => l.textContent.includes("all numbers")); const i = document.getElementById(f.htmlFor); i.value = "Usable EMULATED"; i.dispatchEvent(new Event("input")); })()`
	before := value[int](t, b, visible)
	value[*int](t, b, filter)
	after := value[int](t, b, visible)
	if before < 10 || after != 1 {
		t.Errorf("the filter shows %d of %d rows", after, before)
	}
}

// keyboard: the first stop skips to the content, every stop shows its focus.
func (b *browser) keyboard(t *testing.T, index string) {
	t.Helper()
	b.do(t, chromedp.Navigate(fileURL(index)))
	var stops []string
	for range 12 {
		b.do(t, chromedp.KeyEvent("\t"))
		stop := value[string](t, b, `(() => { const e = document.activeElement, s = getComputedStyle(e); return (e.className === "skip" ? "skip " : "") + e.tagName + " " + s.outlineStyle + " " + parseFloat(s.outlineWidth); })()`)
		stops = append(stops, stop)
	}
	if !strings.HasPrefix(stops[0], "skip A") {
		t.Errorf("the first stop is %s", stops[0])
	}
	for _, s := range stops {
		if strings.HasPrefix(s, "BODY") || strings.HasSuffix(s, " 0") || strings.Contains(s, " none ") {
			t.Errorf("a stop of the keyboard shows no focus: %s of %v", s, stops)
		}
	}
}

// withoutScripts every table and chart is there all the same.
func (b *browser) withoutScripts(t *testing.T, path string) {
	t.Helper()
	count := `[document.querySelectorAll("svg.gantt rect.bar").length, document.querySelectorAll("svg.plot").length, document.querySelectorAll("table tbody tr").length, document.querySelectorAll("button").length]`
	disabled := func(yes bool) chromedp.Action[chromedp.Void] {
		return ask(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: yes})
	}
	b.do(t, chromedp.Navigate(fileURL(path)))
	with := value[[]int](t, b, count)
	b.do(t, disabled(true), chromedp.Reload())
	without := value[[]int](t, b, count)
	b.do(t, disabled(false))
	if len(with) != 4 || with[0] < 50 || with[1] != 2 || with[2] < 30 || with[3] == 0 || !slices.Equal(with[:3], without[:3]) || without[3] != 0 {
		t.Errorf("with scripts %v, without %v", with, without)
	}
}
