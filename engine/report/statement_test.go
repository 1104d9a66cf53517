package report

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/record/recordtest"
)

var updateStatement = flag.Bool("update", false, "write testdata/statement.json anew")

// The statement of a run, word by word; the digests are those of the files.
func TestStatement(t *testing.T) {
	r := load(t, recordtest.Run{Gate: "live", Verdict: engine.Pass})
	data, err := Statement(r)
	if err != nil {
		t.Fatal(err)
	}
	have := string(data)
	for _, name := range []string{record.ManifestFile, record.PlanFile, record.HostFile, record.EventsFile, record.RecordFile} {
		file, err := os.ReadFile(filepath.Join(r.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(file)
		want := `{"digest":{"sha256":"` + hex.EncodeToString(sum[:]) + `"},"name":"` + name + `"}`
		if !strings.Contains(have, want) {
			t.Errorf("%s is not in it with the digest of the file", name)
		}
		have = strings.Replace(have, hex.EncodeToString(sum[:]), "SHA256 of "+name, 1)
	}
	golden := filepath.Join("testdata", "statement.json")
	if *updateStatement {
		if err := os.WriteFile(golden, []byte(have+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || string(want) != have+"\n" {
		t.Errorf("%v: another statement than %s (-update writes it):\n%s", err, golden, have)
	}
}

// Nothing but a pass is a pass, and a run that is not sound has no statement.
func TestStatementOfWhatDidNotPass(t *testing.T) {
	for _, v := range []struct {
		verdict string
		o       recordtest.Run
	}{
		{"failed", recordtest.Run{Gate: "live", Verdict: engine.Fail}},
		{"blocked", recordtest.Run{Gate: "live", Verdict: engine.VerdictUnknown}},
		{"review", recordtest.Run{Gate: "live", Verdict: engine.Review, Evidence: map[string][]byte{"a.png": []byte("x")}}},
	} {
		r := load(t, v.o)
		data, err := Statement(r)
		if err != nil {
			t.Fatal(err)
		}
		var s statement
		if err := json.Unmarshal(data, &s); err != nil || s.Predicate.Result != "FAILED" || len(s.Predicate.Failed) == 0 || len(s.Predicate.Warned) != 0 {
			t.Errorf("%s: %v %+v", v.verdict, err, s.Predicate)
		}
		r.Problems = []record.Problem{{Kind: record.Edited, File: record.RecordFile}}
		if _, err := Statement(r); !errors.Is(err, engine.ErrRefused) {
			t.Errorf("a changed run: %v", err)
		}
	}
}
