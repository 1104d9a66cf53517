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

	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/record/recordtest"
	"github.com/drumsbench/drumsbench/engine/sign"
)

func newKey(t *testing.T) sign.Key {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := sign.ReadKey(path)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// signedRun is a run that key signed.
func signedRun(t *testing.T, key sign.Key) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	recordtest.Run{}.Make(t, dir)
	if err := (&record.Dir{Path: dir}).SignHead(key); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A signed run is its signer's; each way in which it is not is an error of its own kind.
func TestSignedHead(t *testing.T) {
	key, other := newKey(t), newKey(t)
	dir := signedRun(t, key)
	if by, err := record.CheckHead(dir, other.Public(), key.Public()); err != nil || by.ID() != key.Public().ID() {
		t.Fatal(err)
	}
	if r, err := record.Verify(dir); err != nil || len(r.Damage)+len(r.Crash)+len(r.Unknown) > 0 {
		t.Fatalf("%v %+v", err, r)
	}
	edit := func(name string, change func([]byte) []byte) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(dir, name)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			now := change(bytes.Clone(data))
			if bytes.Equal(now, data) {
				t.Fatal("nothing was changed")
			}
			if err := os.WriteFile(path, now, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name   string
		spoil  func(t *testing.T, dir string)
		want   error
		damage string // file that Verify names without any key
	}{
		{"no signature", func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, record.SignatureFile)); err != nil {
				t.Fatal(err)
			}
		}, record.ErrUnsigned, ""},
		{"another key", func(t *testing.T, dir string) {
			if err := (&record.Dir{Path: dir}).SignHead(other); err != nil {
				t.Fatal(err)
			}
		}, sign.ErrSignature, ""},
		{"a link", func(t *testing.T, dir string) {
			path := filepath.Join(dir, record.SignatureFile)
			if err := errors.Join(os.Rename(path, path+".real"), os.Symlink(path+".real", path)); err != nil {
				t.Fatal(err)
			}
		}, record.ErrIrregular, record.SignatureFile},
		{"a huge one", edit(record.SignatureFile, func(b []byte) []byte { return append(b, bytes.Repeat([]byte(" "), 1<<20)...) }), nil, record.SignatureFile},
		{"another payload", edit(record.SignatureFile, func(b []byte) []byte { return bytes.Replace(b, []byte(`"payload":"ey`), []byte(`"payload":"eY`), 1) }), sign.ErrSignature, record.SignatureFile},
		{"no JSON", edit(record.SignatureFile, func(b []byte) []byte { return b[:len(b)/2] }), sign.ErrSignature, record.SignatureFile},
		{"a line cut off", edit(record.EventsFile, func(b []byte) []byte { return b[:bytes.LastIndexByte(b[:len(b)-1], '\n')+1] }), record.ErrHead, record.SignatureFile},
		{"a torn line", edit(record.EventsFile, func(b []byte) []byte { return b[:len(b)-9] }), record.ErrHead, record.SignatureFile},
		{"a line changed", edit(record.EventsFile, func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"outcome":"passed"`), []byte(`"outcome":"failed"`), 1)
		}), record.ErrHead, record.SignatureFile},
		// The chain is the signed one; what hangs from it is Verify's.
		{"the record changed", edit(record.RecordFile, func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"verdict":"passed"`), []byte(`"verdict":"failed"`), 1)
		}), nil, record.RecordFile},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := signedRun(t, key)
			c.spoil(t, dir)
			_, err := record.CheckHead(dir, key.Public())
			if c.want != nil && !errors.Is(err, c.want) || c.name == "a huge one" && err == nil {
				t.Errorf("CheckHead: %v, want %v", err, c.want)
			}
			report, err := record.Verify(dir)
			if err != nil {
				t.Fatal(err)
			}
			named := false
			for _, p := range report.Damage {
				named = named || p.File == c.damage
			}
			if c.damage != "" && !named || c.damage == "" && len(report.Damage) > 0 {
				t.Errorf("Verify: %+v, want damage of %q", report.Damage, c.damage)
			}
		})
	}
	// A whole run that was written anew is sound in itself, and not what was signed.
	again, signature := signedRun(t, other), filepath.Join(dir, record.SignatureFile)
	data, err := os.ReadFile(signature)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(again, record.SignatureFile), data, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := record.CheckHead(again, key.Public()); !errors.Is(err, record.ErrHead) || !strings.Contains(err.Error(), "signed were") {
		t.Errorf("a run written anew: %v", err)
	}
	// A run that has not ended is not signed.
	edit(record.EventsFile, func(b []byte) []byte { return b[:bytes.LastIndexByte(b[:len(b)-1], '\n')+1] })(t, dir)
	if err := (&record.Dir{Path: dir}).SignHead(key); err == nil {
		t.Error("a chain without its end was signed")
	}
}
