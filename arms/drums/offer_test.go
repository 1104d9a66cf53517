package drums

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/offer"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// visited is the drums arm; before its slot is dumped, a careless client has been
// there through an offered port.
type visited struct {
	*Arm
	t *testing.T
}

type visitedSlot struct {
	*slot
	t *testing.T
}

func (v *visited) Provision(ctx context.Context, ws *engine.Workspace, r engine.Root, p engine.Place, params bench.ProvisionParams) (engine.Slot, error) {
	got, err := v.Arm.Provision(ctx, ws, r, p, params)
	if err != nil {
		return nil, err
	}
	return &visitedSlot{got.(*slot), v.t}, nil
}

func (s *visitedSlot) Dump(ctx context.Context, p bench.DumpParams, ref engine.GuestReference) (engine.Checkpoint, engine.Place, error) {
	if err := visit(ctx, s.slot, int(p.Port)); err != nil {
		s.t.Error(err)
	}
	found, ok := s.Observe(ctx, engine.AspectEnclosure).Enclosure.Get()
	if !ok || len(found) > 0 {
		s.t.Errorf("after the visit: known %t, %+v", ok, found)
	}
	return s.slot.Dump(ctx, p, ref)
}

// visit leaves a request that is answered, one that was never finished, one whose
// answer nobody waits for, and a connection on which nothing was said.
func visit(ctx context.Context, s *slot, port int) error {
	o, err := offer.Open(ctx, s.Dial, port)
	if err != nil {
		return err
	}
	defer o.Close(context.Background())
	client := &http.Client{Transport: &http.Transport{}}
	r, err := client.Post(o.URL()+"/execute", "application/json", strings.NewReader(`{"command": ["echo", "hello"]}`))
	if err != nil {
		return err
	}
	body, err := io.ReadAll(r.Body)
	r.Body.Close()
	if err != nil || !strings.Contains(string(body), `"output":"hello\n"`) {
		return fmt.Errorf("%s, %v", body, err)
	}
	for _, said := range []string{
		"POST /execute HTTP/1.1\r\nHost: ",
		"POST /execute HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n" + `{"command": ["sleep", "100"]`,
		"POST /execute HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 30\r\n\r\n" + `{"command": ["sleep", "1000"]}`,
		"",
	} {
		c, err := net.Dial("tcp4", o.Address())
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := io.WriteString(c, said); err != nil {
			return err
		}
	}
	time.Sleep(100 * time.Millisecond)
	end, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	used, err := o.Close(end)
	if err == nil && (used.Connections != 5 || used.Reset != 4 || used.Failed != nil) {
		err = fmt.Errorf("used %+v, want 5 connections, 4 of them reset", used)
	}
	if c, derr := net.Dial("tcp4", o.Address()); derr == nil {
		c.Close()
		err = errors.Join(err, errors.New("the port is still open"))
	}
	return err
}

// Whatever a policy leaves open, the next look at the slot finds nothing of it, and the slot can be dumped.
func TestOfferLeavesNothing(t *testing.T) {
	m := manifest(t, "rollouts=1")
	res, _, _ := execute(t, &visited{newArm(t, m), t}, m, "restore")
	if res.Verdict != engine.RunPassed {
		t.Errorf("%s: %s", res.Verdict, res.Reason)
	}
}
