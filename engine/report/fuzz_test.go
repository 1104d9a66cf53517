package report

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compare"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/record/recordtest"
)

// A run's files may say anything. What can be loaded is drawn, and no page has a
// script but ours, or an attribute that runs one.
func FuzzSite(f *testing.F) {
	parent := f.TempDir()
	dir := filepath.Join(parent, "run")
	recordtest.Run{Gate: "locks", Verdict: engine.Fail, Tools: true, Controls: true}.Make(f, dir)
	names := []string{record.RecordFile, record.PlanFile, record.ManifestFile, record.EventsFile, record.LedgerFile, record.ReviewsFile}
	good := map[string][]byte{}
	for i, name := range names {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		good[name] = data
		f.Add(uint8(i), data)
		f.Add(uint8(i), bytes.ReplaceAll(data, []byte(`"locks`), []byte(`"<script>alert(1)</script>\" onload=\"x\u001b[2J`)))
		f.Add(uint8(i), bytes.ReplaceAll(data, []byte(`"value":"`), []byte(`"value":"-1e309`)))
	}
	site := filepath.Join(parent, "site")
	f.Fuzz(func(t *testing.T, which uint8, data []byte) {
		name := names[int(which)%len(names)]
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if was, had := good[name]; had {
				os.WriteFile(path, was, 0o600)
			} else {
				os.Remove(path)
			}
			os.RemoveAll(site)
		}()
		compare.Load(dir)
		r, none, err := Load(dir, recordtest.Program)
		if err != nil || none != nil {
			return
		}
		Statement(r)
		if err := Write(site, Input{Runs: []*Run{r}, Program: "p"}); err != nil {
			t.Fatal(err)
		}
		err = filepath.WalkDir(site, func(path string, d os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".html") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			page, err := html.Parse(bytes.NewReader(text))
			if err != nil {
				return err
			}
			scripts := 0
			each(page, "", func(n *html.Node) {
				if n.Data == "script" {
					scripts++
				}
				for _, a := range n.Attr {
					if strings.HasPrefix(a.Key, "on") || strings.HasPrefix(strings.ToLower(strings.TrimSpace(a.Val)), "javascript:") {
						t.Errorf("%s: <%s %s=%q>", filepath.Base(path), n.Data, a.Key, a.Val)
					}
				}
			})
			if scripts != 1 || bytes.ContainsRune(text, '\x1b') {
				t.Errorf("%s: %d scripts, or an escape that a terminal obeys", filepath.Base(path), scripts)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}
