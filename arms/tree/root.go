package tree

import (
	"context"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/image"
	"github.com/drumsbench/drumsbench/arms/overlay"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Root is the mounted image.
type Root struct {
	*image.Mounted
	SHA256 bench.SHA256
	// Hashes spares a reset the hashing of the image and of layers.
	Hashes overlay.HashCache
}

func attachOptions(ws *engine.Workspace, i bench.Image, method string) image.AttachOptions {
	path := i.File
	if !filepath.IsAbs(path) {
		path = filepath.Join(ws.State, "images", path)
	}
	return image.AttachOptions{Path: path, Image: i, Method: method, CacheDir: image.CacheDir(ws.State)}
}

// learn has criu learn what it needs to know of the kernel, outside of any
// measurement window: what it learns once, it need not learn at each reset.
func learn(ctx context.Context, tool criu.Tool, state string) error {
	kdat, err := tool.Kdat(KdatDir(state))
	if err != nil {
		return err
	}
	return kdat.Ensure(ctx)
}

// Mount mounts an image by a method of arms/image. Programs that serve it are
// born in the group of tools.
func Mount(ctx context.Context, ws *engine.Workspace, tool criu.Tool, tools *cgroup.Group, i bench.Image, method string) (*Root, error) {
	if err := learn(ctx, tool, ws.State); err != nil {
		return nil, err
	}
	o := attachOptions(ws, i, method)
	o.Prepare = func(cmd *exec.Cmd) {
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{}
		}
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, tools.FD()
	}
	m, err := image.Attach(ctx, ws, o)
	if err != nil {
		return nil, err
	}
	return &Root{Mounted: m, SHA256: i.Sha256}, nil
}

// AdoptRoot takes over the image that is mounted at dir, with the scratch directory
// that it lies in. Where the workspace can take things away it can be released.
func AdoptRoot(ctx context.Context, ws *engine.Workspace, tool criu.Tool, i bench.Image, dir string, things Owned, method string) (*Root, error) {
	if err := learn(ctx, tool, ws.State); err != nil {
		return nil, err
	}
	if err := things.Present("directory", ws.Work); err != nil {
		return nil, err
	}
	mount, err := things.One("mount", dir)
	if err != nil {
		return nil, err
	}
	at := image.Adopted{Dir: dir, Mount: *mount.Identity, Device: mount.Claim.Backing}
	made := things.image(ws.Work, dir)
	for _, t := range made {
		things.Use(t)
	}
	if ws.TakeAway != nil {
		at.Drop = func(ctx context.Context) error { return ws.TakeAway(ctx, made) }
	}
	for _, t := range made {
		switch {
		case t.Kind == "loop" && t.Identity != nil && t.Identity.Loop == at.Device:
			at.Loop = t.Identity
		case t.Kind == "export" && t.Identity != nil:
			if alive, err := procfs.Alive(*t.Identity); err != nil || !alive {
				return nil, Refused("the program that shows the image, pid %d, has ended (%v)", t.Identity.Pid, err)
			}
		}
	}
	if at.Loop == nil && method != image.MethodNBD {
		return nil, Refused("the ledger has no loop device for %s", at.Device)
	}
	m, err := image.Adopt(ctx, attachOptions(ws, i, method), at)
	if err != nil {
		return nil, err
	}
	return &Root{Mounted: m, SHA256: i.Sha256}, nil
}
