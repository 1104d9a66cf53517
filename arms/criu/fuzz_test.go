package criu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"google.golang.org/protobuf/proto"

	"github.com/drumsbench/drumsbench/engine"
)

// One image of a whole set holds anything behind its magic numbers. Reading all that we
// read of a set ends, and what cannot be read is unknown, never empty.
func FuzzImages(f *testing.F) {
	set := minimal(f)
	set["filelocks.img"], set["remap-fpath.img"], set["memfd.img"], set["cgroup.img"] =
		image(f, "filelocks"), image(f, "remap-fpath"), image(f, "memfd"), image(f, "cgroup")
	names := slices.Sorted(maps.Keys(set))
	for i, name := range names {
		f.Add(uint8(i), set[name].Data[min(8, len(set[name].Data)):])
		f.Add(uint8(i), binary.LittleEndian.AppendUint32(nil, 0xffffffff))
	}
	f.Fuzz(func(t *testing.T, which uint8, body []byte) {
		im := maps.Clone(set)
		name := names[int(which)%len(names)]
		head := set[name].Data[:min(8, len(set[name].Data))]
		im[name] = &fstest.MapFile{Data: append(slices.Clone(head), body...)}
		images := ImagesIn(im)
		for _, read := range []func() error{
			images.Complete,
			func() error { _, err := images.Processes(); return err },
			func() error { _, err := images.StoppedAtDump(); return err },
			func() error { _, err := images.HeldLocks(); return err },
			func() error { _, err := images.CopyUp(); return err },
			func() error { _, err := images.Network(); return err },
			func() error { _, err := images.ControlGroups(); return err },
		} {
			if err := read(); err != nil && !errors.Is(err, engine.ErrUnknown) {
				t.Errorf("%s: %v is not unknown", name, err)
			}
		}
	})
}

// CRIU's log repeats what a guest named: programs and files.
func FuzzLog(f *testing.F) {
	logs, err := filepath.Glob("testdata/logs/*.log")
	if err != nil || len(logs) == 0 {
		f.Fatal("no logs", err)
	}
	for _, name := range logs {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("(00.015587)      1: Restoring namespaces 2c020200 flags\n(00.02) \n(00.058574) pie: 30: text\n(99999999999.058574) pie: 30: text\n"))
	f.Fuzz(func(t *testing.T, log []byte) {
		lines := errorLines(log)
		kind, shown := diagnose(lines)
		if len(shown) > maxLines || (kind != "" && len(shown) == 0) || (len(lines) > 0) != (len(shown) > 0) {
			t.Errorf("%d lines shown of %d, kind %q", len(shown), len(lines), kind)
		}
		ParseLogTimes(bytes.NewReader(log))
		var answer rpc.CriuResp
		if proto.Unmarshal(log, &answer) == nil {
			_ = (&Failure{Kind: kind, Lines: shown, Stderr: answer.GetCrErrmsg()}).Error()
		}
	})
}
