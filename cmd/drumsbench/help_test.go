//go:build linux && !elsewhere

package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// Every command's help shows an example of itself and says what its exit codes mean.
func TestEveryCommandTeaches(t *testing.T) {
	parser, err := kong.New(&cli{})
	if err != nil {
		t.Fatal(err)
	}
	leaves := parser.Model.Leaves(true)
	if len(leaves) < 3 {
		t.Fatalf("only %d commands", len(leaves))
	}
	for _, leaf := range leaves {
		name := strings.TrimSuffix(leaf.FullPath(), " ")
		command := strings.Fields(name)[1:]
		t.Run(strings.Join(command, " "), func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := run(append(command, "--help"), &stdout, &stderr); code != codeDone || stderr.Len() > 0 {
				t.Fatalf("code %d, %s", code, stderr.String())
			}
			for _, want := range []string{"\n    drumsbench " + strings.Join(command, " "), "Exit codes: 0"} {
				if !strings.Contains(stdout.String(), want) {
					t.Errorf("%q is missing in\n%s", want, stdout.String())
				}
			}
		})
	}
}
