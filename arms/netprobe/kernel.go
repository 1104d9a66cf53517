package netprobe

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/thread"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/observe"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// linkRequest is what CRIU asks for first when it dumps a namespace (criu/net.c,
// dump_links): an rtgenmsg of family AF_PACKET, padded to four bytes.
type linkRequest struct{}

func (linkRequest) Len() int          { return 4 }
func (linkRequest) Serialize() []byte { return []byte{unix.AF_PACKET, 0, 0, 0} }

// askLinks sends CRIU's request in the calling thread's namespace and decodes the
// answers as CRIU does: one message a link, and the end of the dump.
func askLinks() (links []netlink.Link, bytes int64, err error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_ROOT|unix.NLM_F_MATCH)
	req.AddData(linkRequest{})
	answers, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return nil, 0, fmt.Errorf("ask for links: %w", err)
	}
	for _, a := range answers {
		l, err := netlink.LinkDeserialize(nil, a)
		if err != nil {
			return nil, 0, fmt.Errorf("%w: the answer to a link request: %w", engine.ErrUnknown, err)
		}
		links, bytes = append(links, l), bytes+int64(len(a))
	}
	return links, bytes, nil
}

// kernel tries the kernel alone. The namespace is a thread's and ends with it.
func (p *probe) kernel(_ context.Context, l *bench.NetworkLayer) error {
	return thread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return &engine.Error{Op: "unshare network namespace", Err: err, Hint: "this needs root (CAP_SYS_ADMIN) and CONFIG_NET_NS"}
		}
		const path = "/proc/thread-self/ns/net"
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open a route socket: %w", err)
		}
		defer h.Close()
		if err := mark(h); err != nil {
			return err
		}
		if err := p.at(Kernel, stageReady, path); err != nil {
			return err
		}
		have, err := observe.ReadNetwork(h)
		if err != nil {
			return err
		}
		id, err := namespaceAt(path)
		if err != nil {
			return err
		}
		if !start(l, id, have) {
			return nil
		}
		links, bytes, err := askLinks()
		if err != nil {
			return err
		}
		l.Dumped = []bench.NetworkPart{{Kind: "link", Bytes: bytes}}
		answer, err := observe.ReadNetwork(h) // addresses and routes, which CRIU leaves to ip
		if err != nil {
			return err
		}
		answer.Links = []bench.Link{}
		for _, link := range links {
			a := link.Attrs()
			answer.Links = append(answer.Links, bench.Link{Name: a.Name, Type: link.Type(), Up: a.Flags&net.FlagUp != 0, Mtu: int64(a.MTU), Mac: a.HardwareAddr.String()})
		}
		slices.SortFunc(answer.Links, func(a, b bench.Link) int { return cmp.Compare(a.Name, b.Name) })
		judge(l, id, answer)
		if l.Outcome == Lost {
			l.LostAt, l.Reason = atDump, "the kernel's answer to criu's request does not tell what the namespace holds"
		}
		return nil
	})
}
