package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/arms/qemu"
	"github.com/drumsbench/drumsbench/engine"
)

// Each cause that keeps the qemu arm from running, planted on a good host.
func TestMachines(t *testing.T) {
	accel := func(kvm engine.Reading[string]) func(p *planted) {
		return func(p *planted) {
			p.Accelerator = func(_ context.Context, _ qemu.Tool, a string) engine.Reading[string] {
				if a == "kvm" {
					return kvm
				}
				return engine.Known(a, "test", engine.ViewHost)
			}
		}
	}
	for _, c := range []struct {
		name    string
		plant   func(p *planted)
		want    string
		verdict string
	}{
		{"no qemu", func(p *planted) {
			p.QEMU = func(context.Context) (qemu.Tool, error) {
				return qemu.Tool{}, &engine.Error{Op: "find qemu", Err: fmt.Errorf("%w: no such file", engine.ErrRefused)}
			}
		}, "lack qemu: find qemu: refused: no such file", Lack},
		{"qemu cannot be asked", func(p *planted) {
			p.QEMU = func(context.Context) (qemu.Tool, error) { return qemu.Tool{}, errors.New("i/o error") }
		}, "unknown qemu: cannot be asked: i/o error", Unknown},
		{"no qemu-img", func(p *planted) { p.absent["/qemu-img"] = true }, "lack qemu-tools: no qemu-img", Lack},
		{"KVM does not start", accel(engine.Unknown[string]("Could not access KVM", engine.ViewHost)), `warn qemu-accel: accel: "kvm" is refused here: Could not access KVM`, OK},
		{"KVM falls back", accel(engine.Known("tcg", "test", engine.ViewHost)), "warn qemu-accel", OK},
		{"a kernel hangs under KVM", func(p *planted) {
			p.Kernel = func(context.Context, qemu.Tool, string) (bool, error) {
				return true, fmt.Errorf("%w: the kernel does not get to its root file system", engine.ErrDeadline)
			}
		}, `warn qemu-accel: accel: "kvm" does not serve here: a guest of a few instructions runs, and Linux does not start: `, OK},
		{"no machine starts", func(p *planted) {
			p.Accelerator = func(context.Context, qemu.Tool, string) engine.Reading[string] {
				return engine.Unknown[string]("no memory", engine.ViewHost)
			}
		}, "lack qemu-accel: QEMU does not start a machine at all: no memory", Lack},
		{"no tun", func(p *planted) { p.remove("/dev/net/tun") }, "lack tun: there is no /dev/net/tun", Lack},
		{"tun does not work", func(p *planted) { p.Tun = func() error { return errors.New("not permitted") } }, "lack tun: /dev/net/tun is there and does not work: not permitted", Lack},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := goodHost()
			c.plant(p)
			health, err := Diagnose(t.Context(), p.Host, qemu.Kind)
			if err != nil {
				t.Fatal(err)
			}
			if lines := bad(health); health.Verdict != c.verdict || !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, c.want) }) {
				t.Errorf("%s %q, want %s %q", health.Verdict, lines, c.verdict, c.want)
			}
		})
	}
}
