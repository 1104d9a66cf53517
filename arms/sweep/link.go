package sweep

import (
	"errors"

	"github.com/vishvananda/netlink"

	"github.com/drumsbench/drumsbench/engine/record"
)

// link says whether a network link is gone. No arm makes links that outlive
// their namespace, so that there is no rule by which one would be the run's.
func (s *sweeper) link(o record.Owned) Thing {
	_, err := netlink.LinkByName(o.Claim.Path)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(err, &missing):
		return Thing{Outcome: Absent}
	case err != nil:
		return failed(err, "")
	}
	return Thing{Outcome: Unknown, Reason: "a link of its name is there, and nothing says whether it is the run's", Hint: "ip link delete " + o.Claim.Path + " if nobody needs it"}
}
