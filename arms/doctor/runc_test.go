package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/arms/oci"
	"github.com/drumsbench/drumsbench/engine"
)

// What the oci arm needs beyond the drums arm, each lack planted alone.
func TestRunc(t *testing.T) {
	fails := func(err error) func(*planted) {
		return func(p *planted) {
			p.Host.Probes.Runc = func(context.Context) (oci.Tool, error) { return oci.Tool{}, err }
		}
	}
	for _, c := range []struct {
		name    string
		plant   func(*planted)
		want    string
		remedy  string
		verdict string
	}{
		{"no runc", fails(&engine.Error{Op: "find runc", Err: fmt.Errorf("%w: no runc in /usr/bin", engine.ErrRefused), Hint: "run scripts/setup"}), "lack runc: find runc", "scripts/setup", Lack},
		{"runc does not answer", fails(errors.New("timed out")), "unknown runc: cannot be asked: timed out", "scripts/setup", Unknown},
		{"no devices controller", func(p *planted) { p.edit("/proc/self/cgroup", "5:devices:/\n", "") }, "lack runc-cgroups: no v1 hierarchy has the devices controller", "mount -t cgroup", Lack},
		{"unified", onV2, "", "", OK},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := goodHost()
			c.plant(p)
			health := diagnose(t, p, oci.Kind)
			lines := slices.DeleteFunc(bad(health), func(line string) bool { return !strings.Contains(line, " runc") })
			switch {
			case c.want == "" && len(lines) > 0:
				t.Errorf("found %q", lines)
			case c.want != "" && (len(lines) != 1 || !strings.HasPrefix(lines[0], c.want) || !strings.Contains(lines[0], c.remedy)):
				t.Errorf("found %q, want %q", lines, c.want)
			}
			if health.Verdict != c.verdict {
				t.Errorf("the verdict is %s, want %s", health.Verdict, c.verdict)
			}
		})
	}
}

// Whether systemd's cgroup driver can be used, and why not; the arm runs all the same.
func TestSystemdDriver(t *testing.T) {
	for _, c := range []struct {
		name  string
		plant func(*planted)
		want  string
	}{
		{"no systemd", func(p *planted) { onV2(p); delete(p.files, "run/systemd/system") }, `warn systemd: cgroups: "systemd" cannot be used: systemd does not run this host`},
		{"v1 beside v2", func(*planted) {}, `warn systemd: cgroups: "systemd" cannot be used: v2 is not the only cgroup hierarchy: this host is hybrid`},
		{"it does not answer", func(p *planted) {
			onV2(p)
			p.Host.Probes.Systemd = func(context.Context) (string, error) { return "", errors.New("nobody listens") }
		}, `warn systemd: cgroups: "systemd" cannot be used: nobody listens`},
		{"it cannot be learnt", func(p *planted) { onV2(p); p.closed("/proc/self/mountinfo") }, `warn systemd: cannot be learnt: `},
		{"it answers", onV2, `ok systemd: systemd 252 answers: cgroups: "systemd" can be used`},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := goodHost()
			c.plant(p)
			var lines []string
			for _, f := range diagnose(t, p, oci.Kind).Findings {
				if f.Subject == "systemd" {
					lines = append(lines, f.Severity+" systemd: "+f.Text)
					if (f.Severity == Warn) != (f.Remedy != "") {
						t.Errorf("a %s with the remedy %q", f.Severity, f.Remedy)
					}
				}
			}
			if len(lines) != 1 || !strings.HasPrefix(lines[0], c.want) {
				t.Errorf("found %q, want %q", lines, c.want)
			}
		})
	}
}
