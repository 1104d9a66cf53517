//go:build linux && !elsewhere

package main

import (
	"github.com/drumsbench/drumsbench/arms/sweep"
	"github.com/drumsbench/drumsbench/engine"
)

// seams are where the crash and soak tests reach in. The program itself never sets them:
// only a test binary of this package can.
var seams struct {
	// ledger is put around the ledger of a run.
	ledger func(engine.Ledger) engine.Ledger
	// events is put around the sink of a run's receipts.
	events func(engine.Sink) engine.Sink
	// sweep is called at each point of a sweep.
	sweep func(sweep.Point)
	// machine is told when a machine begins to save or load its state, and by its result that this has ended.
	machine func(command string) (ended func())
	// prober stands for the host.
	prober engine.HostProber
	// progress is put around who is told of a run's progress.
	progress func(*engine.Workspace, engine.Progress) engine.Progress
}
