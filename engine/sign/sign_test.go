package sign

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
)

// pair writes a key and its public part as other tools do.
func pair(t *testing.T) (private, public string) {
	t.Helper()
	pub, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return put(t, "PRIVATE KEY", priv, 0o600), put(t, "PUBLIC KEY", pub, 0o644)
}

func put(t *testing.T, kind string, key any, mode os.FileMode) string {
	t.Helper()
	marshal := x509.MarshalPKCS8PrivateKey
	if kind == "PUBLIC KEY" {
		marshal = x509.MarshalPKIXPublicKey
	}
	der, err := marshal(key)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// What a key signed is its own; another key, another text, another type or
// another signature is not.
func TestSign(t *testing.T) {
	private, public := pair(t)
	key, err := ReadKey(private)
	if err != nil {
		t.Fatal(err)
	}
	pub, err := ReadPublic(public)
	if err != nil || pub.ID() != key.Public().ID() || len(pub.ID()) != 64 {
		t.Fatal(err, pub.ID())
	}
	_, strange := pair(t)
	other, err := ReadPublic(strange)
	if err != nil {
		t.Fatal(err)
	}
	e, err := key.Value("a type", map[string]any{"b": 1, "a": "x"})
	if err != nil {
		t.Fatal(err)
	}
	if data, by, err := Check("a type", e, other, pub); err != nil || string(data) != `{"a":"x","b":1}` || by.ID() != pub.ID() {
		t.Errorf("%s %s %v", data, by.ID(), err)
	}
	wrong := func(what string, change func()) {
		t.Helper()
		was := e
		e.Signatures = append(e.Signatures[:0:0], e.Signatures...)
		change()
		if _, _, err := Check("a type", e, pub); !errors.Is(err, ErrSignature) {
			t.Errorf("%s: %v", what, err)
		}
		e = was
	}
	if _, _, err := Check("a type", e, other); !errors.Is(err, ErrSignature) {
		t.Errorf("another key: %v", err)
	}
	if _, _, err := Check("a type", e); !errors.Is(err, ErrSignature) {
		t.Errorf("no key: %v", err)
	}
	wrong("another type", func() { e.PayloadType = "another" })
	wrong("another text", func() { e.Payload = base64.StdEncoding.EncodeToString([]byte(`{"a":"y","b":1}`)) })
	wrong("no signature", func() { e.Signatures = nil })
	wrong("another signature", func() { e.Signatures[0].Sig = base64.StdEncoding.EncodeToString(make([]byte, 64)) })
}

func TestKeysThatAreNone(t *testing.T) {
	private, public := pair(t)
	if err := os.Chmod(private, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadKey(private); !errors.Is(err, engine.ErrRefused) || !strings.Contains(engine.Failure(err).Hint, "chmod 600") {
		t.Errorf("a key that others may read: %v", err)
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for what, path := range map[string]string{"another kind": put(t, "PRIVATE KEY", ec, 0o600), "a public one": public, "none": filepath.Join(t.TempDir(), "none")} {
		if what == "a public one" {
			if err := os.Chmod(path, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := ReadKey(path); err == nil {
			t.Errorf("%s was read as a key", what)
		}
	}
	if _, err := ReadPublic(put(t, "PUBLIC KEY", &ec.PublicKey, 0o644)); err == nil {
		t.Error("a public key of another kind was read")
	}
	if _, err := ReadPublic(private); err == nil {
		t.Error("a private key was read as a public one")
	}
}
