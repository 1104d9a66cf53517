package guest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

type (
	// Observation is the guest's own view of parts of its slot.
	Observation = proto.Observation
	// MachineLimits are a virtual machine's, as its own kernel has them.
	MachineLimits = proto.Limits
	// Machine is what a virtual machine is told when it boots.
	Machine = proto.Machine
)

// MaxObserve is how long an observation may take: a state is read from every file that changed.
const MaxObserve = 2 * time.Minute

// maxObservation is the size of an observation in bytes: some 100,000 changed files.
const maxObservation = 32 << 20

// errMachine is what guestd answers outside a virtual machine.
var errMachine = fmt.Errorf("the guest has no machine of its own: %w", engine.ErrRefused)

// Observe asks for the guest's own view of aspects; the state leaves out exclude.
// Each aspect is in the answer, or in Unknown with a reason: anything else is
// ErrProtocol. Changes nothing in the guest.
func (c *Client) Observe(ctx context.Context, aspects []string, exclude []string) (Observation, error) {
	const op = "observe guest"
	body, err := json.Marshal(proto.ObserveRequest{Aspects: aspects, Exclude: exclude})
	if err != nil {
		return Observation{}, fail(op, err)
	}
	a, err := c.exchange(ctx, op, request{method: http.MethodPost, path: proto.PathObserve, contentType: "application/json", body: body},
		maxObservation, MaxObserve)
	if err != nil {
		return Observation{}, err
	}
	if a.status != http.StatusOK {
		return Observation{}, a.refused(op)
	}
	var o Observation
	if err := a.json(&o, strict); err != nil {
		return Observation{}, fail(op, err)
	}
	if err := checkObservation(o, aspects, exclude); err != nil {
		return Observation{}, fail(op, fmt.Errorf("%w: %w", ErrProtocol, err))
	}
	return o, nil
}

func checkObservation(o Observation, aspects, exclude []string) error {
	if o.Version != Version {
		return fmt.Errorf("observation is of version %q, want %q", o.Version, Version)
	}
	known := map[string]bool{
		proto.AspectMounts: o.Mounts != nil, proto.AspectNetwork: o.Network != nil, proto.AspectProcesses: o.Processes != nil,
		proto.AspectLocks: o.Locks != nil, proto.AspectState: o.State != nil, proto.AspectLimits: o.Limits != nil,
	}
	for _, a := range aspects {
		if known[a] == (o.Unknown[a] != "") {
			return fmt.Errorf("%s is known %v, with the reason %q", a, known[a], clip(o.Unknown[a]))
		}
	}
	for a, is := range known {
		if is && !slices.Contains(aspects, a) {
			return fmt.Errorf("%s was not asked for", a)
		}
	}
	// Each of these is empty for no slot: an empty one would pass a gate that has seen nothing.
	switch {
	case o.Mounts != nil && len(*o.Mounts) == 0:
		return fmt.Errorf("no mounts")
	case o.Network != nil && len(o.Network.Links) == 0:
		return fmt.Errorf("no links")
	case o.Processes != nil && len(*o.Processes) == 0:
		return fmt.Errorf("no processes")
	}
	if o.Locks != nil {
		for _, l := range *o.Locks {
			if l.Path == "" || l.Pid <= 0 {
				return fmt.Errorf("lock of pid %d on %q", l.Pid, clip(l.Path))
			}
			for _, n := range []bench.Int64{l.Start, l.End} {
				if v, err := strconv.ParseInt(string(n), 10, 64); err != nil || v < -1 {
					return fmt.Errorf("lock on %q with bound %q", clip(l.Path), clip(string(n)))
				}
			}
		}
	}
	if o.State != nil {
		want := slices.Clone(exclude)
		slices.Sort(want)
		if !slices.Equal(want, o.State.Exclude) {
			return fmt.Errorf("state leaves out %q, asked was %q", o.State.Exclude, want)
		}
		last := ""
		for i, e := range o.State.Entries {
			if e.Path == "" || e.Type == "" || i > 0 && e.Path <= last {
				return fmt.Errorf("state has %q after %q", clip(e.Path), clip(last))
			}
			last = e.Path
		}
	}
	if l := o.Limits; l != nil {
		if number(l.Memory) <= 0 || number(l.Swap) < 0 || l.CPUs <= 0 || l.Pids < 0 || l.Tasks <= 0 {
			return fmt.Errorf("limits %+v", *l)
		}
	}
	return nil
}

// number is -1<<63 for what is none.
func number(n bench.Int64) int64 {
	v, err := strconv.ParseInt(string(n), 10, 64)
	if err != nil {
		return math.MinInt64
	}
	return v
}

// Clock is how a guest's clock was set.
type Clock struct {
	// Before is what it showed, Set what it was set to at that moment, After what it showed when it was read back.
	Before, Set, After time.Time
	// Skew is how far behind it was; negative where it was ahead.
	Skew time.Duration
}

// clockTolerance is how far a clock that was read back may be from what it was
// set to, beside the time of the exchange.
const clockTolerance = time.Second

// SetClock sets the guest's CLOCK_REALTIME to at, or from its RTC where at is the
// zero time (which takes up to a second, and is as good as the RTC). It returns an
// error unless the guest read the set time back. engine.ErrRefused where the
// guest is no virtual machine.
func (c *Client) SetClock(ctx context.Context, at time.Time) (Clock, error) {
	const op = "set clock of guest"
	var q proto.ClockRequest
	source := "rtc"
	if !at.IsZero() {
		q.Time, source = bench.Int64(strconv.FormatInt(at.UnixNano(), 10)), "request"
	}
	begin := time.Now()
	var r proto.ClockResponse
	if err := c.machine(ctx, op, proto.PathClock, q, &r); err != nil {
		return Clock{}, err
	}
	before, set, after, skew := number(r.Before), number(r.Set), number(r.After), number(r.Skew)
	switch late := after - set; {
	case r.Source != source || before < 0 || set < 0 || skew != set-before:
		return Clock{}, fail(op, fmt.Errorf("%w: %+v", ErrProtocol, r))
	case q.Time != "" && r.Set != q.Time:
		return Clock{}, fail(op, fmt.Errorf("%w: it was set to %s, asked was %s", ErrProtocol, clip(string(r.Set)), q.Time))
	case late < -int64(clockTolerance) || late > int64(time.Since(begin)+clockTolerance):
		return Clock{}, fail(op, fmt.Errorf("%w: it was set to %d and reads %d", ErrProtocol, set, after))
	}
	return Clock{Before: time.Unix(0, before), Set: time.Unix(0, set), After: time.Unix(0, after), Skew: time.Duration(skew)}, nil
}

// Freeze stops every process of the guest but its server, or lets them go on, and
// returns nil once the guest has read that back. Idempotent. A frozen guest
// answers, but runs nothing. engine.ErrRefused where the guest is no virtual machine.
func (c *Client) Freeze(ctx context.Context, frozen bool) error {
	op := "freeze guest"
	if !frozen {
		op = "thaw guest"
	}
	return c.freeze(ctx, op, proto.FreezeRequest{Frozen: frozen})
}

// Thaw lets the processes of a restored guest go on, as Freeze does, after its kernel's
// generator of random numbers was made anew, of bytes that are drawn here.
func (c *Client) Thaw(ctx context.Context) error {
	q := proto.FreezeRequest{Entropy: make([]byte, proto.EntropySize)}
	if _, err := rand.Read(q.Entropy); err != nil {
		return err
	}
	return c.freeze(ctx, "thaw guest", q)
}

func (c *Client) freeze(ctx context.Context, op string, q proto.FreezeRequest) error {
	var r proto.FreezeResponse
	if err := c.machine(ctx, op, proto.PathFreeze, q, &r); err != nil {
		return err
	}
	if r.Frozen != q.Frozen {
		return fail(op, fmt.Errorf("%w: frozen is %v", ErrProtocol, r.Frozen))
	}
	if r.Reseeded != (q.Entropy != nil) {
		return fail(op, fmt.Errorf("%w: reseeded is %v", ErrProtocol, r.Reseeded))
	}
	return nil
}

// machine makes an exchange that only a virtual machine's server grants.
func (c *Client) machine(ctx context.Context, op, path string, q, r any) error {
	body, err := json.Marshal(q)
	if err != nil {
		return fail(op, err)
	}
	a, err := c.exchange(ctx, op, request{method: http.MethodPost, path: path, contentType: "application/json", body: body}, c.limits.Body, c.limits.Exchange)
	if err != nil {
		return err
	}
	switch a.status {
	case http.StatusOK:
		if err := a.json(r, strict); err != nil {
			return fail(op, err)
		}
		return nil
	case http.StatusConflict:
		return fail(op, errMachine)
	case http.StatusInternalServerError:
		var e proto.ErrorResponse
		if err := a.json(&e, lenient); err != nil {
			return fail(op, err)
		}
		return fail(op, fmt.Errorf("%w: %s", ErrMachine, clip(e.Error)))
	}
	return a.refused(op)
}
