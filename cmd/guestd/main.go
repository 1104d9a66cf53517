//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
//go:debug multipathtcp=0

// Command guestd is the first process of a slot: init and supervisor of the
// guest's services, and the guest server, in one static program.
//
// What always holds: every orphan is reaped; a service that ends makes the slot
// failed, visibly and for good; a program whose time is up dies with its whole
// tree, which is read back; each connection carries one exchange and is closed
// by the server, so that nothing stays open that a dump would have to refuse. At
// rest it holds no descriptor of the host, no inotify watch and no timer that
// depends on the host's uptime: CRIU restores it on the boot that it was dumped
// on and on another.
//
// The directives above keep the runtime from holding a cgroup file of the host
// open, and net from listening with MPTCP, which CRIU cannot dump.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
)

const usage = `usage: guestd COMMAND

  init      be the first process of a slot; ` + proto.ConfigVariable + ` holds its bench.Guest as JSON
  probe     print this process's own view of the slot, as GET /probe has it, without what only the server knows
  version   print the version of the probe and of Go
`

func main() {
	if isRamdiskInit() {
		err := runBoot()
		fmt.Fprintln(os.Stderr, proto.FailurePrefix+err.Error())
		fmt.Fprintln(os.Stderr, "guestd:", powerOff()) // and so the kernel panics
		os.Exit(1)
	}
	// Two threads that run Go serve a guest well; each further one is memory in every slot and every dump.
	runtime.GOMAXPROCS(2)
	// So is each page that waits for the collector; there is little to collect.
	debug.SetGCPercent(25)
	if len(os.Args) != 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	var err error
	switch os.Args[1] {
	case "init":
		err = runInit()
	case "probe":
		err = runProbe()
	case "version", "--version":
		fmt.Println(proto.Version, runtime.Version())
	case "help", "--help", "-h":
		fmt.Print(usage)
	default:
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "guestd:", err)
		os.Exit(1)
	}
}

func runProbe() error {
	own, err := newSelf()
	if err != nil {
		return err
	}
	p, err := own.view()
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(append(text, '\n'))
	return err
}
