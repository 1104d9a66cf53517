package criu

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// fakeDir is where a fake CRIU leaves the pids that it started.
const fakeDir = "DRUMS_CRIU_FAKE_DIR"

// fake is a CRIU that does one thing wrong. It never returns.
func fake(mode string) {
	switch mode {
	case "sleep":
		for {
			time.Sleep(time.Hour)
		}
	case "deaf": // reads nothing
		for {
			time.Sleep(time.Hour)
		}
	}
	req := fakeReceive()
	switch mode {
	case "hang": // with a helper in its group and one that left it
		fakeChild("helper", nil)
		fakeChild("escaped", &syscall.SysProcAttr{Setsid: true})
		for {
			time.Sleep(time.Hour)
		}
	case "orphans": // ends, and its helper keeps the socket open
		fakeChild("helper", nil)
		os.Exit(0)
	case "crash":
		_ = unix.Exec("/bin/sh", []string{"sh", "-c", "kill -SEGV $$"}, nil)
	case "silent":
		fmt.Fprintln(os.Stderr, "stage: cannot mount anything")
		os.Exit(3)
	case "garbage":
		_, _ = unix.Write(SocketFD, []byte{0xff, 0xff, 0xff})
	case "wrong":
		fakeSend(&rpc.CriuResp{Type: rpc.CriuReqType_WAIT_PID.Enum(), Success: proto.Bool(true)}, nil)
	case "large":
		fakeSend(&rpc.CriuResp{Type: req.Type, Success: proto.Bool(false), CrErrmsg: proto.String(
			"Error (criu/x.c:1): " + strings.Repeat("x", 150<<10) + "\n")}, nil)
		os.Exit(1)
	case "errno":
		fakeSend(&rpc.CriuResp{Type: req.Type, Success: proto.Bool(false), CrErrno: proto.Int32(int32(unix.ESRCH))}, nil)
		os.Exit(1)
	case "linger":
		fakeSend(&rpc.CriuResp{Type: req.Type, Success: proto.Bool(true)}, nil)
		for {
			time.Sleep(time.Hour)
		}
	case "exit":
		fakeSend(&rpc.CriuResp{Type: req.Type, Success: proto.Bool(true)}, nil)
		os.Exit(1)
	case "pts": // hands a file over and tells what it was answered
		r, w, err := os.Pipe()
		if err != nil {
			os.Exit(4)
		}
		fakeSend(&rpc.CriuResp{Type: rpc.CriuReqType_NOTIFY.Enum(), Success: proto.Bool(true),
			Notify: &rpc.CriuNotify{Script: proto.String(ScriptOrphanPtsMaster)}}, w)
		answer := fakeReceive()
		w.Close()
		data := make([]byte, 16)
		n, _ := r.Read(data)
		ok := answer.GetNotifySuccess() && answer.GetType() == rpc.CriuReqType_NOTIFY && bytes.Equal(data[:n], []byte("seen"))
		fakeSend(&rpc.CriuResp{Type: req.Type, Success: proto.Bool(ok)}, nil)
	case "version":
		fakeSend(&rpc.CriuResp{Type: req.Type, Success: proto.Bool(true),
			Version: &rpc.CriuVersion{MajorNumber: proto.Int32(4), MinorNumber: proto.Int32(1), Sublevel: proto.Int32(1)}}, nil)
	}
	os.Exit(0)
}

func fakeReceive() *rpc.CriuReq {
	data := make([]byte, 1<<20)
	n, err := unix.Read(SocketFD, data)
	req := &rpc.CriuReq{}
	if err != nil || proto.Unmarshal(data[:n], req) != nil {
		os.Exit(5)
	}
	return req
}

func fakeSend(resp *rpc.CriuResp, file *os.File) {
	data, err := proto.Marshal(resp)
	if err != nil {
		os.Exit(6)
	}
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	if err := unix.Sendmsg(SocketFD, data, rights, nil, 0); err != nil {
		os.Exit(7)
	}
}

// fakeChild starts a child that sleeps, with the socket, and leaves its pid.
func fakeChild(name string, attr *syscall.SysProcAttr) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{fakeVariable + "=sleep"}
	cmd.ExtraFiles = []*os.File{os.NewFile(SocketFD, "socket")}
	cmd.SysProcAttr = attr
	if err := cmd.Start(); err != nil {
		os.Exit(8)
	}
	_ = os.WriteFile(filepath.Join(os.Getenv(fakeDir), name), fmt.Append(nil, cmd.Process.Pid), 0o644)
}
