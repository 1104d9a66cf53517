package criu

import "os/exec"

// SocketFD is the descriptor that the program finds its request socket on: the
// first of exec.Cmd's ExtraFiles, which [Run] puts there.
const SocketFD = 3

// Args are the arguments after the program's name. A stage of the caller's that
// executes CRIU in its own pid passes these.
//
// --no-default-config shuts out /etc/criu/default.conf, ~/.criu/default.conf and
// $CRIU_CONFIG_FILE (criu/config.c, next_config).
func Args() []string { return []string{"--no-default-config", "swrk", "3"} }

// Env is the whole environment of CRIU, and with it of ip, tar and iptables,
// which it finds by PATH.
//
// CRIU_LIBS_DIR names a directory that exists on every Linux and holds no
// library: without it CRIU loads every plugin of the host's /usr/lib/criu
// (criu/plugin.c, cr_plugin_init).
func Env() []string {
	return []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin",
		"LC_ALL=C",
		"CRIU_LIBS_DIR=/proc/self/task",
	}
}

// Command is CRIU itself, ready for [Run], in the caller's own namespaces.
func (t Tool) Command() *exec.Cmd {
	cmd := exec.Command(t.Path, Args()...)
	cmd.Env = Env()
	return cmd
}
