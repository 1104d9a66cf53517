package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// How long services have between SIGTERM and SIGKILL when the slot is told to end.
const shutdownGrace = 3 * time.Second

// runInit is the first process of a slot until the slot is told to end. A
// virtual machine ends with it, whatever it returns.
func runInit() (err error) {
	if _, ok := os.LookupEnv(proto.MachineVariable); ok && os.Getpid() == 1 {
		defer func() {
			if err != nil {
				fmt.Fprintln(os.Stderr, proto.FailurePrefix+err.Error())
			}
			err = powerOff()
		}()
	}
	if err := checkPlace(); err != nil {
		return err
	}
	machine, err := newMachine()
	if err != nil {
		return err
	}
	config, err := readConfig()
	if err != nil {
		return err
	}
	who, err := newIdentity(config.User, config.Home, config.Display != nil)
	if err != nil {
		return err
	}
	unix.Umask(0o022)
	if config.Session != nil {
		if err := who.openSession("/", *config.Session); err != nil {
			return err
		}
	}
	own, err := newSelf()
	if err != nil {
		return err
	}

	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGCHLD, unix.SIGTERM, unix.SIGINT)

	procs := newProcesses()
	if machine != nil {
		procs.group = machine.tree
	}
	slot := newSlot(procs, who, config.Services)
	s := &server{self: own, live: newLive(), slot: slot, procs: procs, who: who, machine: machine}
	if config.Display != nil {
		s.screen = &screen{}
	}
	listener, err := listen(int(config.Server.Port))
	if err != nil {
		return err
	}
	if machine != nil {
		if err := machine.forward(); err != nil {
			return err
		}
	}
	go s.live.tick()
	go func() {
		err := s.serve(listener)
		slot.fail("the guest server ended: " + err.Error())
	}()
	go slot.start()

	for sig := range signals {
		if sig != unix.SIGCHLD {
			slot.shutdown(signals)
			return nil
		}
		procs.reap()
	}
	return nil
}

// checkPlace refuses what would make the slot misbehave later, or spoil its dump.
func checkPlace() error {
	if pid := os.Getpid(); pid != 1 {
		return fmt.Errorf("init must be the first process of a pid namespace, this is pid %d", pid)
	}
	// Only a process of the pid namespace can mount its proc. A runtime that has
	// done so is left alone; where nothing is mounted, this is init's to do.
	if _, err := os.Lstat("/proc/self"); errors.Is(err, os.ErrNotExist) {
		if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("mount /proc: %w", err)
		}
	}
	if link, err := os.Readlink("/proc/self"); err != nil || link != "1" {
		return fmt.Errorf("/proc is not that of this pid namespace: /proc/self is %q (%v)", link, err)
	}
	// A descriptor that came from outside ties the slot to the host. The runtime
	// opens none above 2 before main.
	for fd := 3; fd < 256; fd++ {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			link, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
			return fmt.Errorf("descriptor %d came from outside: %s (%v)", fd, link, err)
		}
	}
	return nil
}

func readConfig() (bench.Guest, error) {
	var config bench.Guest
	text, ok := os.LookupEnv(proto.ConfigVariable)
	if !ok {
		return config, fmt.Errorf("%s is not set", proto.ConfigVariable)
	}
	if err := os.Unsetenv(proto.ConfigVariable); err != nil {
		return config, err
	}
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&config); err != nil {
		return config, fmt.Errorf("decode %s: %w", proto.ConfigVariable, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return config, fmt.Errorf("decode %s: something follows the JSON value", proto.ConfigVariable)
	}
	if config.Server.Port <= 0 || config.Server.Port > 65535 {
		return config, fmt.Errorf("port %d is none", config.Server.Port)
	}
	if config.User == "" || config.Home == "" {
		return config, fmt.Errorf("user %q with home %q", config.User, config.Home)
	}
	names := make(map[bench.Name]bool)
	for _, s := range config.Services {
		if s.Name == "" || names[s.Name] || len(s.Exec) == 0 || s.Exec[0] == "" {
			return config, fmt.Errorf("service %q is named twice, or has no name or program", s.Name)
		}
		if s.User != "" && s.User != "root" {
			return config, fmt.Errorf("service %s as user %q: only root is named, all others run as the guest's user", s.Name, s.User)
		}
		names[s.Name] = true
	}
	return config, nil
}
