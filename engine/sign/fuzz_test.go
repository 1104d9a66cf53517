package sign

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

// Whatever a key's file or an envelope holds: a key that is read has its form back, and nobody's key signed it.
func FuzzKeys(f *testing.F) {
	private := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	der, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		f.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(der)
	f.Add(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	f.Add(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}))
	f.Add([]byte(`{"payload":"e30=","payloadType":"a","signatures":[{"keyid":"a","sig":"AAAA"}]}`))
	f.Add([]byte(`{"payload":"-_","payloadType":"a","signatures":[{}]}`))
	file := filepath.Join(f.TempDir(), "key")
	mine := publicOf(private.Public().(ed25519.PublicKey))
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if p, err := ParsePublic(data); err == nil && len(p.key) != ed25519.PublicKeySize {
			t.Errorf("a key of %d bytes", len(p.key))
		}
		if p, err := ReadPublic(file); err == nil && p.ID() == "" {
			t.Error("a key without a name")
		}
		if k, err := ReadKey(file); err == nil {
			if _, err := k.Bytes("a", data); err != nil {
				t.Error(err)
			}
		}
		var e dsse.Envelope
		if json.Unmarshal(data, &e) == nil {
			if _, _, err := Check(e.PayloadType, e, mine); err == nil {
				t.Errorf("it is signed: %q", data)
			}
		}
	})
}
