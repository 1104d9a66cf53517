package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/sign"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// SignatureFile is there where a key was configured: the signed head of the chain.
const SignatureFile = "signature.json"

// headType is what a signature of a chain's head is of.
const headType = "application/vnd.drumsbench.head+json"

// Whose word a run is, and of which chain.
var (
	// ErrUnsigned: nobody signed the run.
	ErrUnsigned = errors.New("it is not signed")
	// ErrHead: what was signed is another chain than the one that is there: lines
	// were cut off or written anew since.
	ErrHead = errors.New("the chain is not the one that was signed")
)

// SignHead signs the last receipt of a run that has ended, and reads back that the
// signature fits. ErrRefused for a chain that is damaged or has not ended.
func (d *Dir) SignHead(key sign.Key) error {
	const op = "sign run"
	head, err := headOf(d.Path)
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	e, err := key.Value(headType, head)
	if err != nil {
		return err
	}
	data, err := canonical.JSON(e)
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	if err := d.put(SignatureFile, data); err != nil {
		return err
	}
	if _, err := CheckHead(d.Path, key.Public()); err != nil {
		return &engine.Error{Op: op, Err: fmt.Errorf("it was not read back as it was written: %w", err)}
	}
	return nil
}

// headOf is the head of a chain that is whole.
func headOf(dir string) (bench.SignedHead, error) {
	links, torn, err := readLinks(dir)
	if err != nil {
		return bench.SignedHead{}, err
	}
	damage, crash := checkLines(links, torn)
	for _, p := range append(damage, crash...) {
		return bench.SignedHead{}, fmt.Errorf("%w: %w", engine.ErrRefused, p)
	}
	last := links[len(links)-1]
	return bench.SignedHead{ApiVersion: engine.APIVersion, Events: int64(len(links)), Head: last.digest}, nil
}

// CheckHead says which of the keys signed the run's chain as it is there; what hangs
// from the chain, [Verify] checks. ErrUnsigned without a signature, sign.ErrSignature
// for one of none of these keys, ErrHead for one of another chain.
func CheckHead(dir string, keys ...sign.Public) (by sign.Public, err error) {
	const op = "check signature of run"
	e, err := envelopeOf(dir)
	if err != nil {
		return by, &engine.Error{Op: op, Err: err}
	}
	data, by, err := sign.Check(headType, e, keys...)
	if err != nil {
		return by, err
	}
	if err := sameHead(dir, data); err != nil {
		return by, &engine.Error{Op: op, Err: err, Hint: "get the run's directory from whoever signed it"}
	}
	return by, nil
}

// maxSignature bounds the file in bytes: an envelope of a head is a few hundred.
const maxSignature = 64 << 10

// envelopeOf reads the signature of a run.
func envelopeOf(dir string) (e dsse.Envelope, err error) {
	path := filepath.Join(dir, SignatureFile)
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return e, ErrUnsigned
	}
	if err == nil && info.Size() > maxSignature {
		err = fmt.Errorf("%w: %s is larger than %d bytes", engine.ErrRefused, SignatureFile, maxSignature)
	}
	var data []byte
	if err == nil {
		data, err = ReadRegular(path)
	}
	if err == nil {
		if err = json.Unmarshal(data, &e); err != nil {
			err = fmt.Errorf("%w: %s: %w", sign.ErrSignature, SignatureFile, err)
		}
	}
	return e, err
}

// sameHead compares what was signed with the chain that is there.
func sameHead(dir string, data []byte) error {
	var signed bench.SignedHead
	if err := compile.Validate("SignedHead", data); err != nil {
		return fmt.Errorf("%w: %w", engine.ErrRefused, err)
	}
	if err := json.Unmarshal(data, &signed); err != nil {
		return err
	}
	head, err := headOf(dir)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrHead, err)
	}
	if head != signed {
		return fmt.Errorf("%w: it has %d lines and ends in %.12s, signed were %d and %.12s", ErrHead, head.Events, head.Head, signed.Events, signed.Head)
	}
	return nil
}

// signature checks that what was signed is this chain. Whose signature it is,
// whoever knows the keys has to ask: see [CheckHead].
func (v *verifier) signature() error {
	e, err := envelopeOf(v.dir)
	if errors.Is(err, ErrUnsigned) {
		return nil
	}
	var data []byte
	if err == nil {
		data, err = e.DecodeB64Payload()
	}
	if err == nil && (e.PayloadType != headType || len(e.Signatures) == 0) {
		err = fmt.Errorf("it is no signature of a chain but %q", e.PayloadType)
	}
	if err == nil {
		err = sameHead(v.dir, data)
	}
	if err != nil {
		v.damage(Problem{Wrong, SignatureFile, 0, err.Error()})
	}
	return nil
}
