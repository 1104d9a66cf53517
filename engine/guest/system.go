package guest

import (
	"context"
	"errors"
	"fmt"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
)

// System is what the guest's software is.
type System = proto.System

// Inspect is Probe with System in the answer. The guest reads files for it: it
// belongs in no measurement window.
func (c *Client) Inspect(ctx context.Context) (Probe, error) {
	const op = "inspect guest"
	p, err := c.probe(ctx, op, proto.PathSystem)
	if err != nil {
		return p, err
	}
	if err := checkSystem(p.System); err != nil {
		return Probe{}, fail(op, fmt.Errorf("%w: %w", ErrProtocol, err))
	}
	return p, nil
}

// checkSystem refuses readings that are neither known nor unknown.
func checkSystem(s *System) error {
	if s == nil {
		return errors.New("the probe lacks the system that was asked for: the image's guest server is an older one")
	}
	for name, r := range map[string]proto.Reading{"os": s.OS, "kernel": s.Kernel, "machine": s.Machine, "packages": s.Packages} {
		known := r.Value != "" && r.Source != ""
		switch {
		case known == (r.Unknown != ""):
			return fmt.Errorf("system's %s is %+v, neither known nor unknown", name, r)
		case len(r.Value) > proto.MaxReading:
			return fmt.Errorf("system's %s has %d bytes, the limit is %d", name, len(r.Value), proto.MaxReading)
		}
	}
	return nil
}
