package confine

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/security.md names every entry of the lists, and each test that it names exists.
func TestSecurityPage(t *testing.T) {
	const root = "../.."
	page, err := os.ReadFile(filepath.Join(root, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(KeptNames(), ReadOnlyPaths()...) {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/security.md lacks %s", name)
		}
	}
	for _, name := range regexp.MustCompile("`CAP_[A-Z_]+`").FindAllString(string(page), -1) {
		if name != "`CAP_MKNOD`" && !strings.Contains(Names(KeptMask()), strings.Trim(name, "`")) {
			t.Errorf("docs/security.md names %s, which is not kept", name)
		}
	}
	missing := map[string]bool{}
	for _, name := range regexp.MustCompile(`\b(Test|Fuzz)[A-Z]\w+`).FindAllString(string(page), -1) {
		missing["func "+name+"("] = true
	}
	// Each row of a table with tests names one.
	inTests := false
	for line := range strings.Lines(string(page)) {
		row := strings.HasPrefix(line, "|")
		if row && strings.HasSuffix(strings.TrimSpace(line), "| test |") {
			inTests = true
		}
		inTests = inTests && row
		if inTests && !strings.Contains(line, "| test |") && !strings.HasPrefix(line, "| ---") && !regexp.MustCompile("`(Test|Fuzz)[A-Z]\\w+`[^|]*\\|\\s*$").MatchString(line) {
			t.Errorf("docs/security.md claims without a test: %s", line)
		}
	}
	if len(missing) < 30 {
		t.Errorf("docs/security.md names %d tests", len(missing))
	}
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for name := range missing {
			if strings.Contains(string(text), name) {
				delete(missing, name)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range missing {
		t.Errorf("docs/security.md names a test that is not there: %s", name)
	}
}
