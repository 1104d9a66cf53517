package record_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/record/recordtest"
	"github.com/drumsbench/drumsbench/engine/sign"
)

// waiting is the directory of a run in which two gates wait for a person.
func waiting(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	r := recordtest.Run{Gate: "live", Verdict: engine.Review, Rollouts: 2}.Make(t, dir)
	if r.Verdict != engine.RunReview {
		t.Fatalf("the run is %s: %s", r.Verdict, r.Reason)
	}
	return dir
}

func sound(t *testing.T, dir string) record.Report {
	t.Helper()
	r, err := record.Verify(dir)
	if err != nil || len(r.Damage)+len(r.Crash)+len(r.Unknown) > 0 {
		t.Fatalf("%v %v %v %v", err, r.Damage, r.Crash, r.Unknown)
	}
	return r
}

// A run that waits passes once a person has passed every step that waits, fails
// once one was failed, and verifies all the way.
func TestDecide(t *testing.T) {
	for _, c := range []struct {
		second string
		want   string
	}{{"pass", "passed"}, {"fail", "failed"}} {
		dir := waiting(t)
		list, err := record.ReadWaiting(dir)
		if err != nil || len(list) != 2 || list[0].Step != "r0/gate-live" || list[0].Review != nil {
			t.Fatalf("%v %+v", err, list)
		}
		r, err := record.Decide(dir, "r0/gate-live", "pass", " A. Person ", "the screen is as it has to be", nil)
		if err != nil || r.Verdict != engine.RunReview {
			t.Fatalf("one of two decided: %v %s", err, r.Verdict)
		}
		sound(t, dir)
		r, err = record.Decide(dir, "r1/gate-live", c.second, "A. Person", "looked at it", nil)
		if err != nil || string(r.Verdict) != c.want {
			t.Errorf("second %s: %v %s %s, want %s", c.second, err, r.Verdict, r.Reason, c.want)
		}
		if got := sound(t, dir).Record; got.Verdict != r.Verdict || got.Digests["reviews"] == "" {
			t.Errorf("the record says %s, digest %q", got.Verdict, got.Digests["reviews"])
		}
		for _, s := range r.Steps {
			if s.Step == "r0/gate-live" && (s.Verdict != engine.Pass || s.Review == nil || s.Review.By != "A. Person") {
				t.Errorf("%+v", s)
			}
		}
		if c.second == "fail" && r.Rollouts[1].Class != record.Invalid {
			t.Errorf("the rollout whose gate a person failed is %s", r.Rollouts[1].Class)
		}
		if _, err := record.Decide(dir, "r0/gate-live", "fail", "B", "no", nil); !errors.Is(err, engine.ErrRefused) {
			t.Errorf("a second decision: %v", err)
		}
		if _, err := record.Decide(dir, "mount", "pass", "B", "no", nil); !errors.Is(err, engine.ErrRefused) {
			t.Errorf("a step that does not wait: %v", err)
		}
		if _, err := record.Decide(dir, "r1/gate-live", "perhaps", "", "", nil); err == nil {
			t.Error("a decision that the schema does not know was taken")
		}
		sound(t, dir)
	}
}

// A review never makes a run pass that has something else against it.
func TestReviewPassesNoFailedRun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	o := recordtest.Run{Gate: "live", Verdict: engine.Review, Rollouts: 2}
	o.Make(t, dir)
	events := filepath.Join(dir, record.EventsFile)
	data, err := os.ReadFile(events)
	if err != nil {
		t.Fatal(err)
	}
	// The run ended blocked, whatever its steps say: only itself can have known why.
	i := bytes.LastIndex(data, []byte(`"outcome":"review"`))
	data = append(data[:i:i], bytes.Replace(data[i:], []byte(`"review"`), []byte(`"blocked"`), 1)...)
	if err := errors.Join(os.WriteFile(events, data, 0o644), os.Remove(filepath.Join(dir, record.RecordFile))); err != nil {
		t.Fatal(err)
	}
	r, err := record.Build(dir, record.Header{Run: "run/one", Arm: "fake"})
	if err != nil || r.Verdict != engine.RunBlocked {
		t.Fatalf("%v %s", err, r.Verdict)
	}
	d := record.Dir{Path: dir}
	r.Engine.Sha256, r.Engine.Version, r.Engine.Go, r.Engine.Schema = recordtest.Program, "v", "go", engine.APIVersion
	if _, err := d.WriteRecord(r); err != nil {
		t.Fatal(err)
	}
	for _, step := range []string{"r0/gate-live", "r1/gate-live"} {
		if r, err = record.Decide(dir, step, "pass", "A", "fine", nil); err != nil {
			t.Fatal(err)
		}
	}
	if r.Verdict != engine.RunBlocked {
		t.Errorf("the run is %s", r.Verdict)
	}
}

// Whatever is done to the decisions is found.
func TestReviewsVerify(t *testing.T) {
	edit := func(from, to string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(dir, record.ReviewsFile)
			data, err := os.ReadFile(path)
			if err != nil || !bytes.Contains(data, []byte(from)) {
				t.Fatal(err, from)
			}
			if err := os.WriteFile(path, bytes.Replace(data, []byte(from), []byte(to), 1), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		do   func(t *testing.T, dir string)
		want record.ProblemKind
	}{
		"reason edited":   {edit("fine", "very fine"), record.Edited},
		"decision edited": {edit(`"decision":"pass"`, `"decision":"fail"`), record.Edited},
		"other step":      {edit("r0/gate-live", "r0/gate-mounts"), record.Wrong},
		"other receipt":   {edit(`"receipt":"`, `"receipt":"0000`), record.Wrong},
		"taken away": {func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, record.ReviewsFile)); err != nil {
				t.Fatal(err)
			}
		}, record.Missing},
		"first line gone": {func(t *testing.T, dir string) {
			path := filepath.Join(dir, record.ReviewsFile)
			data, err := os.ReadFile(path)
			if err == nil {
				_, data, _ = bytes.Cut(data, []byte("\n"))
				err = os.WriteFile(path, data, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}, record.Edited},
	} {
		t.Run(name, func(t *testing.T) {
			dir := waiting(t)
			for _, step := range []string{"r0/gate-live", "r1/gate-live"} {
				if _, err := record.Decide(dir, step, "pass", "A", "fine", nil); err != nil {
					t.Fatal(err)
				}
			}
			c.do(t, dir)
			r, err := record.Verify(dir)
			if err != nil || len(r.Damage) == 0 {
				t.Fatalf("not found: %v %+v", err, r)
			}
			if r.Damage[0].Kind != c.want || r.Damage[0].File != record.ReviewsFile {
				t.Errorf("%v", r.Damage)
			}
		})
	}
}

// A decision that is signed is of the key that it names: another decision, another
// name and another key are found, and one that is not signed says nothing of a key.
func TestSignedReview(t *testing.T) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := sign.ReadKey(path)
	if err != nil {
		t.Fatal(err)
	}
	dir := waiting(t)
	if _, err := record.Decide(dir, "r0/gate-live", "pass", "A. Person", "fine", &key); err != nil {
		t.Fatal(err)
	}
	if _, err := record.Decide(dir, "r1/gate-live", "pass", "B. Person", "fine too", nil); err != nil {
		t.Fatal(err)
	}
	sound(t, dir)
	reviews, err := record.ReadReviews(dir)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := record.Signer(reviews[0]); err != nil || p.ID() != key.Public().ID() {
		t.Errorf("%v %s", err, p.ID())
	}
	if _, err := record.Signer(reviews[1]); err == nil {
		t.Error("a line that nobody signed has a signer")
	}
	file := filepath.Join(dir, record.ReviewsFile)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]string{{"A. Person", "C. Person"}, {`"decision":"pass"`, `"decision":"fail"`}, {string(key.Public().ID()), strings.Repeat("0", 64)}, {`"sig":"`, `"sig":"AAAA`}} {
		if err := os.WriteFile(file, bytes.Replace(data, []byte(c[0]), []byte(c[1]), 1), 0o644); err != nil {
			t.Fatal(err)
		}
		r, err := record.Verify(dir)
		if err != nil || len(r.Damage) == 0 || r.Damage[0].Line != 1 || !strings.Contains(r.Damage[0].Text, "signature does not fit") {
			t.Errorf("%s: %v %v", c[1], err, r.Damage)
		}
	}
}

// Whoever decides may be stopped between the decision and the record, or in the
// middle of the line: both are a crash, no damage, and can be gone on from.
func TestReviewStopped(t *testing.T) {
	dir := waiting(t)
	before, err := os.ReadFile(filepath.Join(dir, record.RecordFile))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := record.Decide(dir, "r0/gate-live", "pass", "A", "fine", nil); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, record.RecordFile), before, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, record.ReviewsFile), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(`{"seq":1,"prev"`)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	r, err := record.Verify(dir)
	if err != nil || len(r.Damage) != 0 || len(r.Crash) != 2 {
		t.Fatalf("%v %v %v", err, r.Damage, r.Crash)
	}
	// A line that the record does not know of hides nothing else: the rest of the record is made anew all the same.
	forged := bytes.Replace(before, []byte(`"class":"success"`), []byte(`"class":"invalid"`), 1)
	if bytes.Equal(forged, before) {
		t.Fatalf("nothing was forged in %s", before)
	}
	if err := os.WriteFile(filepath.Join(dir, record.RecordFile), forged, 0o644); err != nil {
		t.Fatal(err)
	}
	if r, err := record.VerifyAs(dir, recordtest.Program); err != nil || len(r.Damage) != 1 || r.Damage[0].File != record.RecordFile {
		t.Errorf("a record was changed beside a review that it does not know of: %v %v %v", err, r.Damage, r.Unknown)
	}
	if err := os.WriteFile(filepath.Join(dir, record.RecordFile), before, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := record.Renew(dir); err != nil {
		t.Fatal(err)
	}
	sound(t, dir)
	again, err := record.Decide(dir, "r1/gate-live", "pass", "A", "fine", nil)
	if err != nil || again.Verdict != engine.RunPassed {
		t.Errorf("%v %s", err, again.Verdict)
	}
	sound(t, dir)
}
