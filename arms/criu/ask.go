package criu

import (
	"context"
	"errors"
	"fmt"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"google.golang.org/protobuf/proto"
)

// version is what the program says of itself.
type version struct {
	Major, Minor, Sub int
	Git               string
}

func (v version) String() string {
	s := fmt.Sprintf("%d.%d", v.Major, v.Minor)
	if v.Sub != 0 {
		s += fmt.Sprintf(".%d", v.Sub)
	}
	if v.Git != "" {
		s += "-" + v.Git
	}
	return s
}

func (t Tool) askVersion(ctx context.Context) (version, error) {
	resp, err := Run(ctx, t.Command(), Request{Op: "ask criu for its version", CriuReq: &rpc.CriuReq{Type: rpc.CriuReqType_VERSION.Enum()}}, nil)
	if err != nil {
		return version{}, err
	}
	v := resp.GetVersion()
	if v == nil {
		return version{}, errors.New("ask criu for its version: it gave none")
	}
	return version{int(v.GetMajorNumber()), int(v.GetMinorNumber()), int(v.GetSublevel()), v.GetGitid()}, nil
}

// Check asks CRIU whether this kernel lets it work. workDir gets check.log.
func (t Tool) Check(ctx context.Context, workDir string) error {
	req, done, err := request("check criu", rpc.CriuReqType_CHECK, common{ImagesDir: workDir, WorkDir: workDir, LogFile: "check.log", LogLevel: LogErrors}, &rpc.CriuOpts{})
	if err != nil {
		return err
	}
	defer done()
	return withPrivateRun(func() error {
		_, err := Run(ctx, t.Command(), req, nil)
		return err
	})
}

// probeKernel makes CRIU look at the kernel, and write what it found to /run as it sees it.
func (t Tool) probeKernel(ctx context.Context) error {
	_, err := Run(ctx, t.Command(), Request{Op: "probe kernel for criu", CriuReq: &rpc.CriuReq{
		Type:     rpc.CriuReqType_FEATURE_CHECK.Enum(),
		Features: &rpc.CriuFeatures{MemTrack: proto.Bool(true)},
	}}, nil)
	return err
}
