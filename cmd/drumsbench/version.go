package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/schemas"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

type versionCmd struct{}

// Help teaches the command.
func (versionCmd) Help() string {
	return `Prints the engine's version, the SHA-256 of the program's own file, the Go version it was
built with and the schema's apiVersion. A record names the same four.

Example:

  drumsbench version -o json

Exit codes: 0 printed, 3 the program's own file cannot be read.`
}

// Run prints the version.
func (versionCmd) Run(_ context.Context, g *globals) error {
	v, err := engineVersion()
	if err != nil {
		return err
	}
	if g.json() {
		return printJSON(g.Stdout, v)
	}
	return printText(g.Stdout, fmt.Sprintf("drumsbench %s\nsha256     %s\ngo         %s\nschema     %s\n", v.Version, v.Sha256, v.Go, v.Schema))
}

// engineVersion says which program this is. The file is read once; on Linux through
// /proc/self/exe, which is the file that is running even if another one has since
// taken its name.
var engineVersion = sync.OnceValues(func() (bench.EngineVersion, error) {
	path, err := "/proc/self/exe", error(nil)
	if runtime.GOOS != "linux" {
		path, err = os.Executable()
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	if err != nil {
		return bench.EngineVersion{}, &engine.Error{Op: "read own program", Err: fmt.Errorf("%w: %w", engine.ErrUnknown, err)}
	}
	version := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		version = info.Main.Version
	}
	return bench.EngineVersion{
		Version: version, Sha256: canonical.Sum(data),
		Go: runtime.Version(), Schema: schemas.APIVersion,
	}, nil
})
