//go:build linux && !elsewhere

package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine/record"
)

// openssl, which knows nothing of us, makes the keys and checks what was exported:
// an ed25519 signature over DSSE's pre-authentication encoding.
func TestExportInToto(t *testing.T) {
	dir := t.TempDir()
	key, public := filepath.Join(dir, "key.pem"), filepath.Join(dir, "key.pub")
	openssl := func(args ...string) error {
		out, err := exec.Command("openssl", args...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("openssl %s: %w\n%s", strings.Join(args, " "), err, out)
		}
		return err
	}
	for _, args := range [][]string{{"genpkey", "-algorithm", "ed25519", "-out", key}, {"pkey", "-pubout", "-in", key, "-out", public}} {
		if err := openssl(args...); err != nil {
			t.Fatal(err)
		}
	}
	fakes := fakeCrash(t, dir)
	runs := filepath.Join(dir, "runs")
	run := filepath.Join(runs, "fake-restore")
	if code, out, errs := call(t, append([]string{"--state", fakes.State, "run", "--key", key, "--out", runs}, fakes.Run...)...); code != 0 {
		t.Fatalf("%d %s%s", code, out, errs)
	}
	check := func(envelope []byte, kind string) (payload []byte) {
		t.Helper()
		var e struct {
			PayloadType, Payload string
			Signatures           []struct{ KeyID, Sig string }
		}
		if err := json.Unmarshal(envelope, &e); err != nil || e.PayloadType != kind || len(e.Signatures) != 1 {
			t.Fatalf("%v %.300s", err, envelope)
		}
		payload, err := base64.StdEncoding.DecodeString(e.Payload)
		if err != nil {
			t.Fatal(err)
		}
		sig, err := base64.StdEncoding.DecodeString(e.Signatures[0].Sig)
		if err != nil {
			t.Fatal(err)
		}
		pae, sigfile := filepath.Join(dir, "pae"), filepath.Join(dir, "sig")
		verify := func(text []byte) error {
			for path, data := range map[string][]byte{pae: []byte(fmt.Sprintf("DSSEv1 %d %s %d %s", len(kind), kind, len(text), text)), sigfile: sig} {
				if err := os.WriteFile(path, data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			return openssl("pkeyutl", "-verify", "-pubin", "-inkey", public, "-rawin", "-in", pae, "-sigfile", sigfile)
		}
		if err := verify(payload); err != nil {
			t.Error(err)
		}
		if verify(append([]byte(" "), payload...)) == nil {
			t.Error("openssl takes the signature for another text's")
		}
		return payload
	}
	head, err := os.ReadFile(filepath.Join(run, record.SignatureFile))
	if err != nil {
		t.Fatal(err)
	}
	check(head, "application/vnd.drumsbench.head+json")
	code, out, errs := call(t, "export", "--in-toto", "--key", key, run)
	if code != 0 {
		t.Fatalf("%d %s", code, errs)
	}
	statement := string(check([]byte(out), "application/vnd.in-toto+json"))
	for _, want := range []string{`"_type":"https://in-toto.io/Statement/v1"`, `"predicateType":"https://in-toto.io/attestation/test-result/v0.1"`, `"result":"PASSED"`, `"failedTests":[]`, `"r2/restore"`} {
		if !strings.Contains(statement, want) {
			t.Errorf("no %s in %s", want, statement)
		}
	}

	// verify asks for the signature, and names whose it is.
	if code, out, _ := call(t, "verify", "--key", public, run); code != 0 || !strings.Contains(out, "signed by key ") {
		t.Errorf("%d %s", code, out)
	}
	if err := os.Remove(filepath.Join(run, record.SignatureFile)); err != nil {
		t.Fatal(err)
	}
	if code, out, _ := call(t, "verify", "--key", public, run); code != codeBlocked || !strings.Contains(out, "signature.json: unsigned: ") {
		t.Errorf("%d %s", code, out)
	}
	if code, out, _ := call(t, "verify", run); code != 0 {
		t.Errorf("without a key: %d %s", code, out)
	}
	// What was changed is not exported, and a key that is not there signs no run.
	path := filepath.Join(run, record.RecordFile)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(data), `"verdict":"passed"`, `"verdict":"failed"`, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := call(t, "export", "--in-toto", "--key", key, run); code != codeFailed || out != "" || !strings.Contains(errs, "not sound") {
		t.Errorf("%d %s%s", code, out, errs)
	}
	if code, _, errs := call(t, append([]string{"--state", fakes.State, "run", "--key", public, "--out", filepath.Join(dir, "none")}, fakes.Run...)...); code != codeFailed || !strings.Contains(errs, "signing key") {
		t.Errorf("%d %s", code, errs)
	}
	if _, err := os.Lstat(filepath.Join(dir, "none")); err == nil {
		t.Error("a run was begun with a key that cannot sign")
	}
}
