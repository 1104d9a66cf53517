package register

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/record/recordtest"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// A registration that is read is byte for byte what this program would write, and has the digest of its bytes.
func FuzzRegistration(f *testing.F) {
	made, err := New(recordtest.Run{Bars: []bench.Bar{bar("quick", "1h")}}.Plans(), recordtest.Engine, time.Unix(1e9, 0))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(made.JSON)
	f.Add([]byte(`{"apiVersion":1e999}`))
	f.Add([]byte(`{"a":1,"a":2}`))
	file := filepath.Join(f.TempDir(), "starts")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		read, rerr := Read(file)
		r, err := Parse(data)
		if (err == nil) != (rerr == nil) || err == nil && read.Digest != r.Digest {
			t.Errorf("%v, of the file %v", err, rerr)
		}
		if err != nil {
			return
		}
		again, err := canonical.JSON(r.Registration)
		if err != nil || string(again) != string(data) || r.Digest != canonical.Sum(data) {
			t.Errorf("%v: %q", errors.Join(err), data)
		}
	})
}
