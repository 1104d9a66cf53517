package record

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// Whatever lies in the place of one file of a run, everything that reads a run
// comes to its end, and a file that another one names the digest of is never
// another one without a word.
func FuzzRun(f *testing.F) {
	dir := wholeRun(f)
	names := []string{EventsFile, LedgerFile, ManifestFile, PlanFile, HostFile, RecordFile, ReviewsFile, HandleFile, RegistrationFile, SignatureFile}
	sealed := map[string]bool{EventsFile: true, ManifestFile: true, PlanFile: true, HostFile: true}
	good := map[string][]byte{}
	for i, name := range names {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			good[name] = data
			f.Add(uint8(i), data)
			f.Add(uint8(i), bytes.ReplaceAll(data, []byte(`{`), []byte(`{"id":1e400,"id":-1,`)))
		}
		for _, seed := range []string{"", "\n", "null\n", "[]", `{}`, "{\"seq\":9223372036854775807}\n{}", `{"event":"run_start","seq":-1}` + "\n"} {
			f.Add(uint8(i), []byte(seed))
		}
	}
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
		}()
		ReadEvents(dir)
		ReadLedger(filepath.Join(dir, LedgerFile))
		ReadReviews(dir)
		ReadWaiting(dir)
		ReadHandle(dir)
		ReadManifest(dir)
		VerifyChain(dir)
		r, err := Verify(dir)
		if err != nil {
			t.Fatal(err)
		}
		if sealed[name] && !bytes.Equal(data, good[name]) && r.Damage == nil && r.Crash == nil {
			t.Errorf("%s is another one, and nothing is said", name)
		}
	})
}
