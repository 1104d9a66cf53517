//go:build linux && !elsewhere

package main

import (
	"context"
	"fmt"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/doctor"
	"github.com/drumsbench/drumsbench/arms/drums"
	"github.com/drumsbench/drumsbench/arms/fake"
	"github.com/drumsbench/drumsbench/arms/footprint"
	"github.com/drumsbench/drumsbench/arms/hostfacts"
	"github.com/drumsbench/drumsbench/arms/oci"
	"github.com/drumsbench/drumsbench/arms/qemu"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// armKinds are the arms that a manifest names, in the order in which they run.
func armKinds(a bench.Arms) []string {
	var kinds []string
	if a.Drums != nil {
		kinds = append(kinds, drums.Kind)
	}
	if a.Oci != nil {
		kinds = append(kinds, oci.Kind)
	}
	if a.Qemu != nil {
		kinds = append(kinds, qemu.Kind)
	}
	if a.Fake != nil {
		kinds = append(kinds, fake.Kind)
	}
	return kinds
}

// newArm makes the arm of a kind with the manifest's settings, and says what the host is for it.
func newArm(ctx context.Context, kind string, a bench.Arms, state string) (engine.Arm, []bench.Fact, error) {
	version, err := engineVersion()
	if err != nil {
		return nil, nil, err
	}
	host := append(hostfacts.Read(), bench.Fact{Name: engine.EngineDigest, Known: true, Value: string(version.Sha256), Source: "/proc/self/exe", View: engine.ViewHost})
	switch kind {
	case drums.Kind:
		tool, err := criu.Locate(ctx, state)
		if err != nil {
			return nil, nil, err
		}
		if err := tool.Pinned(a.Drums.Criu); err != nil {
			return nil, nil, err
		}
		arm := drums.New(*a.Drums, tool, host)
		return arm, append(arm.Facts(ctx), footprintFact([]footprint.Program{criuProgram(tool)}, doctor.Needs(false))), nil
	case oci.Kind:
		tool, err := criu.Locate(ctx, state)
		if err != nil {
			return nil, nil, err
		}
		runc, err := oci.Locate(ctx, state)
		if err != nil {
			return nil, nil, err
		}
		arm, err := oci.New(*a.Oci, runc, tool, host)
		if err != nil {
			return nil, nil, err
		}
		return arm, append(arm.Facts(ctx), footprintFact([]footprint.Program{{Path: runc.Path}, criuProgram(tool)}, doctor.Needs(false))), nil
	case qemu.Kind:
		tool, err := qemu.Locate(ctx, a.Qemu.Qemu)
		if err != nil {
			return nil, nil, err
		}
		arm := qemu.New(*a.Qemu, tool, tool.Accelerator(ctx, a.Qemu.Accel), host)
		if err := arm.Usable(); err != nil {
			return nil, nil, err
		}
		arm.Watch(seams.machine)
		return arm, append(arm.Facts(ctx), footprintFact([]footprint.Program{{Path: tool.Path}}, machineNeeds(a.Qemu.Accel))), nil
	case fake.Kind:
		arm, err := fake.New(*a.Fake)
		if err != nil {
			return nil, nil, err
		}
		return arm, append(append(host, arm.Facts(ctx)...), footprintFact(nil, nil)), nil
	}
	return nil, nil, fmt.Errorf("make arm: no arm of kind %q", kind)
}
