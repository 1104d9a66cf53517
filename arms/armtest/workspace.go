package armtest

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Workspace makes a run directory with its ledger and evidence, and a scratch
// directory, both in dir. done closes the files.
func Workspace(t *testing.T, dir, state string) (ws *engine.Workspace, done func() error) {
	t.Helper()
	d, err := record.Create(filepath.Join(dir, "run"))
	if err != nil {
		t.Fatal(err)
	}
	var id [6]byte
	rand.Read(id[:]) // never fails (crypto/rand)
	ws = &engine.Workspace{
		Run: d.Path, Work: filepath.Join(dir, "work"), State: state, ID: hex.EncodeToString(id[:]),
		Ledger: d.Ledger, Evidence: d.Evidence, Log: slog.New(slog.DiscardHandler),
	}
	if err := ws.MakeWork(); err != nil {
		t.Fatal(errors.Join(err, d.Close()))
	}
	return ws, d.Close
}

// checkLedger requires that the ledger of the run in dir is one: each line is of
// the schema, each intent says enough to find the thing, each bind identifies it,
// and nothing is owned any more.
func checkLedger(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, "run", record.LedgerFile)
	open, torn, err := record.ReadLedger(path)
	if err != nil || torn != 0 {
		t.Errorf("ledger: %v, torn line %d", err, torn)
	}
	for _, o := range open {
		t.Errorf("ledger: %s %+v is not gone (identity %+v)", o.Kind, o.Claim, o.Identity)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		if err := compile.Validate("LedgerLine", lines.Bytes()); err != nil {
			t.Errorf("ledger line %s: %v", lines.Text(), err)
		}
		var l bench.LedgerLine
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			t.Error(err)
			continue
		}
		if l.Claim.Path == "" && l.Claim.Backing == "" && l.Claim.Cgroup == "" {
			t.Errorf("ledger: the claim says nothing to find the thing by: %s", lines.Text())
		}
		if l.Op == "bind" && !identifies(l.Kind, l.Identity) {
			t.Errorf("ledger: the identity is none: %s", lines.Text())
		}
	}
}

// identifies says whether an identity is enough for its kind: never a name or an inode alone.
func identifies(kind string, id *bench.Identity) bool {
	switch {
	case id == nil:
		return false
	case kind == "process":
		return id.Pid > 0 && id.StartTicks != ""
	case kind == "export" && id.Pid > 0: // of its server, where that is a process
		return id.StartTicks != ""
	case kind == "loop":
		return id.Loop != "" && id.Dev != "" && id.Ino != ""
	}
	return id.Dev != "" && id.Ino != ""
}
