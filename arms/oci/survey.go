package oci

import (
	"context"

	"github.com/drumsbench/drumsbench/arms/hostview"
	"github.com/drumsbench/drumsbench/engine"
)

// Survey implements engine.Surveyor.
func (a *Arm) Survey(ctx context.Context, ws *engine.Workspace) (engine.Survey, error) {
	return hostview.Look(ctx, hostview.Scope{ID: ws.ID, Paths: []string{ws.Work, ws.Run}})
}
