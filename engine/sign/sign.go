// Package sign signs what people and engines say with ed25519 keys, and checks it.
// It exists so that a receipt or a decision can be held against somebody's key, and
// not only against the host that it lies on.
//
// Always holds: keys are files that other tools make and read (PKCS#8 and PKIX in
// PEM, as "openssl genpkey -algorithm ed25519" and "openssl pkey -pubout" write
// them); a signature is over DSSE's pre-authentication encoding, so that text of
// one type is never taken for another's; a key's name is the SHA-256 of its public
// part as DER, and nothing else decides whose a signature is.
package sign

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"os"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// ErrSignature: no signature of the keys that were named fits what was signed.
var ErrSignature = errors.New("the signature does not fit")

// Key signs.
type Key struct{ private ed25519.PrivateKey }

// Public is the part of a key that checks.
type Public struct {
	key ed25519.PublicKey
	der []byte
}

// ReadKey reads a private key, PKCS#8 in PEM. ErrRefused for one that others than
// its owner may read: what it signed would be anybody's word.
func ReadKey(path string) (Key, error) {
	const op = "read signing key"
	info, err := os.Stat(path)
	if err != nil {
		return Key{}, &engine.Error{Op: op, Err: err}
	}
	if info.Mode().Perm()&0o077 != 0 {
		return Key{}, &engine.Error{Op: op, Err: fmt.Errorf("%w: others may read %s (mode %04o)", engine.ErrRefused, path, info.Mode().Perm()), Hint: "chmod 600 " + path}
	}
	der, err := block(path, "PRIVATE KEY")
	var any any
	if err == nil {
		any, err = x509.ParsePKCS8PrivateKey(der)
	}
	if err != nil {
		return Key{}, &engine.Error{Op: op, Err: fmt.Errorf("%s: %w", path, err), Hint: "make one: openssl genpkey -algorithm ed25519 -out FILE"}
	}
	private, is := any.(ed25519.PrivateKey)
	if !is {
		return Key{}, &engine.Error{Op: op, Err: fmt.Errorf("%s: it is no ed25519 key", path), Hint: "make one: openssl genpkey -algorithm ed25519 -out FILE"}
	}
	return Key{private}, nil
}

// ReadPublic reads a public key, PKIX in PEM.
func ReadPublic(path string) (Public, error) {
	der, err := block(path, "PUBLIC KEY")
	if err == nil {
		var p Public
		if p, err = ParsePublic(der); err == nil {
			return p, nil
		}
	}
	return Public{}, &engine.Error{Op: "read public key", Err: fmt.Errorf("%s: %w", path, err), Hint: "make it of the private one: openssl pkey -pubout -in KEY -out FILE"}
}

// block is the first PEM block of a file, which must be of this type.
func block(path, kind string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	b, _ := pem.Decode(data)
	switch {
	case b == nil:
		return nil, errors.New("it is no PEM file")
	case b.Type != kind:
		return nil, fmt.Errorf("it holds a %s, not a %s", b.Type, kind)
	}
	return b.Bytes, nil
}

// ParsePublic reads a public key as DER (PKIX).
func ParsePublic(der []byte) (Public, error) {
	any, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return Public{}, err
	}
	key, is := any.(ed25519.PublicKey)
	if !is {
		return Public{}, errors.New("it is no ed25519 key")
	}
	return publicOf(key), nil
}

func publicOf(key ed25519.PublicKey) Public {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		panic(err) // an ed25519 key has a form
	}
	return Public{key, der}
}

// Public is the key's public part.
func (k Key) Public() Public { return publicOf(k.private.Public().(ed25519.PublicKey)) }

// DER is the key as PKIX.
func (p Public) DER() []byte { return p.der }

// ID names the key: the SHA-256 of its DER.
func (p Public) ID() bench.SHA256 {
	sum := sha256.Sum256(p.der)
	return bench.SHA256(hex.EncodeToString(sum[:]))
}

// Value signs the canonical JSON of v as text of this type.
func (k Key) Value(kind string, v any) (dsse.Envelope, error) {
	data, err := canonical.JSON(v)
	if err != nil {
		return dsse.Envelope{}, &engine.Error{Op: "sign " + kind, Err: err}
	}
	return k.Bytes(kind, data)
}

// Bytes signs data as text of this type.
func (k Key) Bytes(kind string, data []byte) (dsse.Envelope, error) {
	s, err := dsse.NewEnvelopeSigner(signer{k})
	if err == nil {
		var e *dsse.Envelope
		if e, err = s.SignPayload(context.Background(), kind, data); err == nil {
			return *e, nil
		}
	}
	return dsse.Envelope{}, &engine.Error{Op: "sign " + kind, Err: err}
}

// Check says which of the keys signed the envelope, whose type must be kind, and
// what it holds. ErrSignature where none of them did.
func Check(kind string, e dsse.Envelope, keys ...Public) (data []byte, by Public, err error) {
	const op = "check signature"
	if e.PayloadType != kind {
		return nil, by, &engine.Error{Op: op, Err: fmt.Errorf("%w: it is of a %q, not of a %q", ErrSignature, e.PayloadType, kind)}
	}
	for _, key := range keys {
		v, err := dsse.NewEnvelopeVerifier(verifier{key})
		if err != nil {
			return nil, by, &engine.Error{Op: op, Err: err}
		}
		if _, err := v.Verify(context.Background(), &e); err != nil {
			continue
		}
		data, err := e.DecodeB64Payload()
		if err != nil {
			return nil, by, &engine.Error{Op: op, Err: err}
		}
		return data, key, nil
	}
	return nil, by, &engine.Error{Op: op, Err: ErrSignature}
}

type signer struct{ Key }

func (s signer) Sign(_ context.Context, data []byte) ([]byte, error) {
	return s.private.Sign(nil, data, crypto.Hash(0))
}
func (s signer) KeyID() (string, error) { return string(s.Public().ID()), nil }

type verifier struct{ p Public }

func (v verifier) Verify(_ context.Context, data, sig []byte) error {
	if !ed25519.Verify(v.p.key, data, sig) {
		return ErrSignature
	}
	return nil
}
func (v verifier) KeyID() (string, error)   { return string(v.p.ID()), nil }
func (v verifier) Public() crypto.PublicKey { return v.p.key }
