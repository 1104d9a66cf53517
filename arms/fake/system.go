package fake

import "github.com/drumsbench/drumsbench/engine/guest/proto"

// system is what the guest says of its software.
func (t *tenancy) system() *proto.System {
	const source = "fake world"
	s := &proto.System{
		OS: proto.Reading{Value: "Fake 1", Source: source}, Kernel: proto.Reading{Value: "1-fake", Source: source},
		Machine: proto.Reading{Value: "fake", Source: source}, Packages: proto.Reading{Value: "0 packages", Source: source},
	}
	if t.fault("other-system") {
		s.OS.Value = "Fake 2"
	}
	if t.fault("unknown-system") {
		s.Packages = proto.Reading{Unknown: "read fake world: permission denied"}
	}
	return s
}
