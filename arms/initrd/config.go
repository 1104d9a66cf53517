package initrd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
)

// Where an image has what boots it.
const (
	Kernel    = "/boot/vmlinuz"
	Initramfs = "/boot/initramfs.img"
)

// CommandLine is the kernel's: the console is the first serial port, a panic ends
// the machine (with -no-reboot), and only what is wrong is printed.
const CommandLine = "console=ttyS0 panic=-1 loglevel=4"

// FailurePrefix begins the line on the serial console that says why a boot went no further.
const FailurePrefix = proto.FailurePrefix

// Address and Gateway of a machine behind QEMU's user networking, as QEMU has them when nothing else is asked for.
const (
	Address = "10.0.2.15/24"
	Gateway = "10.0.2.2"
)

// Config is what one machine is told.
type Config = proto.Machine

var hostname = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,62}[A-Za-z0-9])?$`)

// Append returns initrd, which Build made, with the machine's configuration in a
// second archive behind it. The kernel unpacks both. The same arguments give the
// same bytes. ErrUsage: the configuration makes no sense.
func Append(initrd []byte, config Config) ([]byte, error) {
	const op = "append configuration to initial ramdisk"
	if err := check(config); err != nil {
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%w: %w", err, engine.ErrUsage)}
	}
	text, err := json.Marshal(config)
	if err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	var out bytes.Buffer
	out.Write(initrd)
	out.Write(make([]byte, -len(initrd)&3)) // an archive begins at a multiple of four, zeros before it are skipped (initramfs buffer format)
	if err := write(&out, []file{{name: proto.MachineFile, mode: 0o400, content: text}}); err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	return out.Bytes(), nil
}

func check(c Config) error {
	if !hostname.MatchString(c.Hostname) {
		return fmt.Errorf("%q is no host name", c.Hostname)
	}
	for _, a := range c.Addresses {
		if p, err := netip.ParsePrefix(a); err != nil || !p.Addr().Is4() {
			return fmt.Errorf("%q is no IPv4 address with its prefix length", a)
		}
	}
	if c.Gateway != "" {
		if a, err := netip.ParseAddr(c.Gateway); err != nil || !a.Is4() {
			return fmt.Errorf("gateway %q is no IPv4 address", c.Gateway)
		}
	}
	if len(c.Addresses) == 0 && (c.Gateway != "" || len(c.Forward) > 0) {
		return fmt.Errorf("gateway %q and forwarded ports %v, but no address", c.Gateway, c.Forward)
	}
	for _, port := range c.Forward {
		if port < 1 || port > 65535 {
			return fmt.Errorf("port %d is none", port)
		}
	}
	if c.Pids < 0 {
		return fmt.Errorf("a limit of %d tasks", c.Pids)
	}
	return nil
}
