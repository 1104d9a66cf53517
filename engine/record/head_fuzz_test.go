package record

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/drumsbench/drumsbench/engine/sign"
)

// Whatever lies in signature.json, reading it ends, and nobody's key has signed it.
func FuzzSignature(f *testing.F) {
	for _, seed := range []string{
		`{"payload":"e30=","payloadType":"application/vnd.drumsbench.head+json","signatures":[{"keyid":"a","sig":"AAAA"}]}`,
		`{"payload":"","payloadType":"","signatures":[]}`, `{"signatures":null}`, `[]`, ``, "\x00",
	} {
		f.Add([]byte(seed))
	}
	public, _, err := ed25519.GenerateKey(rand.Reader)
	der, merr := x509.MarshalPKIXPublicKey(public)
	key, perr := sign.ParsePublic(der)
	if err := errors.Join(err, merr, perr); err != nil {
		f.Fatal(err)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, SignatureFile), data, 0o600); err != nil {
			t.Fatal(err)
		}
		if by, err := CheckHead(dir, key); err == nil {
			t.Fatalf("signed by %q: %q", by.ID(), data)
		}
		v := verifier{dir: dir}
		if err := v.signature(); err != nil || len(v.report.Damage) != 1 {
			t.Fatalf("%v %+v", err, v.report.Damage)
		}
	})
}
