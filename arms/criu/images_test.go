package criu

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	core_x86 "github.com/checkpoint-restore/go-criu/v7/crit/images/core-x86"
	criu_core "github.com/checkpoint-restore/go-criu/v7/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/fdinfo"
	filelock "github.com/checkpoint-restore/go-criu/v7/crit/images/file-lock"
	fownpb "github.com/checkpoint-restore/go-criu/v7/crit/images/fown"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/mnt"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/pstree"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/regfile"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/vma"
	"google.golang.org/protobuf/proto"

	"github.com/drumsbench/drumsbench/engine"
)

// image encodes messages as CRIU does. Required fields may be missing: the test names what matters.
func image(t testing.TB, kind string, messages ...proto.Message) *fstest.MapFile {
	t.Helper()
	data := binary.LittleEndian.AppendUint32(nil, magics["common"])
	data = binary.LittleEndian.AppendUint32(data, magics[kind])
	for _, m := range messages {
		body, err := proto.MarshalOptions{AllowPartial: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		data = append(binary.LittleEndian.AppendUint32(data, uint32(len(body))), body...)
	}
	return &fstest.MapFile{Data: data}
}

func u32(n uint32) *uint32 { return &n }

// minimal is a tree of one task with one file, in the whole.
func minimal(t testing.TB) fstest.MapFS {
	t.Helper()
	regs := &core_x86.UserX86RegsEntry{}
	for _, f := range []**uint64{&regs.R15, &regs.R14, &regs.R13, &regs.R12, &regs.Bp, &regs.Bx, &regs.R11, &regs.R10, &regs.R9, &regs.R8, &regs.Ax, &regs.Cx,
		&regs.Dx, &regs.Si, &regs.Di, &regs.OrigAx, &regs.Ip, &regs.Cs, &regs.Flags, &regs.Sp, &regs.Ss, &regs.FsBase, &regs.GsBase, &regs.Ds, &regs.Es, &regs.Fs, &regs.Gs} {
		*f = proto.Uint64(0)
	}
	regs.Mode = core_x86.UserX86RegsMode_COMPAT.Enum()
	fp := &core_x86.UserX86FpregsEntry{Cwd: u32(0), Swd: u32(0), Twd: u32(0), Fop: u32(0), Rip: proto.Uint64(0), Rdp: proto.Uint64(0), Mxcsr: u32(0), MxcsrMask: u32(0)}
	core := &criu_core.CoreEntry{
		Mtype:      criu_core.CoreEntry_X86_64.Enum(),
		ThreadInfo: &core_x86.ThreadInfoX86{ClearTidAddr: proto.Uint64(0), Gpregs: regs, Fpregs: fp},
		Tc:         &criu_core.TaskCoreEntry{TaskState: u32(1), ExitCode: u32(0), Personality: u32(0), Flags: u32(0), BlkSigset: proto.Uint64(0), Comm: proto.String("old")},
		Ids:        &criu_core.TaskKobjIdsEntry{VmId: u32(1), FilesId: u32(2), FsId: u32(1), SighandId: u32(1), MntNsId: u32(9)},
	}
	maps := &mm.MmEntry{ExeFileId: u32(1)}
	for _, f := range []**uint64{&maps.MmStartCode, &maps.MmEndCode, &maps.MmStartData, &maps.MmEndData, &maps.MmStartStack, &maps.MmStartBrk, &maps.MmBrk,
		&maps.MmArgStart, &maps.MmArgEnd, &maps.MmEnvStart, &maps.MmEnvEnd} {
		*f = proto.Uint64(0)
	}
	return fstest.MapFS{
		"pstree.img": image(t, "pstree", &pstree.PstreeEntry{Pid: u32(1), Ppid: u32(0), Pgid: u32(1), Sid: u32(1), Threads: []uint32{1}}),
		"core-1.img": image(t, "core", core),
		"fdinfo-2.img": image(t, "fdinfo",
			&fdinfo.FdinfoEntry{Id: u32(1), Flags: u32(0), Type: fdinfo.FdTypes_REG.Enum(), Fd: u32(3)},
			&fdinfo.FdinfoEntry{Id: u32(2), Flags: u32(0), Type: fdinfo.FdTypes_PIPE.Enum(), Fd: u32(4)}),
		"files.img": image(t, "files", file(1, "/a", 2, 100), &fdinfo.FileEntry{Type: fdinfo.FdTypes_PIPE.Enum(), Id: u32(2)}),
		"mm-1.img":  image(t, "mm", maps),
		"mountpoints-9.img": image(t, "mountpoints",
			mount(100, 50, "./", "/", 7), mount(101, 100, "./bound", "/dir", 7), mount(102, 100, "./tmp", "/", 8)),
	}
}

func file(id uint32, name string, flags uint32, mount int32) *fdinfo.FileEntry {
	return &fdinfo.FileEntry{Type: fdinfo.FdTypes_REG.Enum(), Id: u32(id), Reg: &regfile.RegFileEntry{
		Id: u32(id), Flags: u32(flags), Pos: proto.Uint64(0), Name: proto.String(name), MntId: proto.Int32(mount), Fown: fown(),
	}}
}

func mount(id, parent uint32, point, root string, dev uint32) *mnt.MntEntry {
	return &mnt.MntEntry{Fstype: u32(17), MntId: u32(id), RootDev: u32(dev), ParentMntId: u32(parent), Flags: u32(0),
		Root: proto.String(root), Mountpoint: proto.String(point), Source: proto.String("overlay"), Options: proto.String("")}
}

func filelockEntry(kind, mode uint32, pid, fd int32) *filelock.FileLockEntry {
	return &filelock.FileLockEntry{Flag: u32(kind), Type: u32(mode), Pid: proto.Int32(pid), Fd: proto.Int32(fd), Start: proto.Int64(0), Len: proto.Int64(1)}
}

func TestImagesOfOneTask(t *testing.T) {
	fsys := minimal(t)
	im := ImagesIn(fsys)
	if pids, err := im.Compat32(); err != nil || !slices.Equal(pids, []int{1}) {
		t.Errorf("32-bit tasks %v, %v", pids, err)
	}
	fsys["files.img"] = image(t, "files",
		file(1, "/a", 2, 100), file(2, "/bound/b", 1, 101), file(3, "/tmp/c", 2, 102), file(4, "/bound/d", 2, -1), file(5, "/tmp/e", 2, -1), file(6, "/f", 0, 100), file(7, "/g", 0, 100))
	maps, err := one[mm.MmEntry](im, "mm", "mm-1.img")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []struct {
		id     uint64
		status uint32
	}{{6, vmaFileShared}, {7, vmaFilePrivate}} {
		maps.Vmas = append(maps.Vmas, &vma.VmaEntry{Start: proto.Uint64(0), End: proto.Uint64(1), Pgoff: proto.Uint64(0), Shmid: proto.Uint64(m.id),
			Prot: u32(1), Flags: u32(1), Status: u32(m.status), Fd: proto.Int64(-1)})
	}
	fsys["mm-1.img"] = image(t, "mm", maps)
	if names, err := im.CopyUp(); err != nil || !slices.Equal(names, []string{"/a", "/dir/b", "/dir/d", "/f"}) {
		t.Errorf("copy up %q, %v", names, err)
	}
	fsys["filelocks.img"] = image(t, "filelocks", filelockEntry(flPosix, typeRead, 1, 3), filelockEntry(flPosix, typeRead, 1, 3))
	if locks, err := im.Locks(); err != nil || len(locks) != 1 || locks[0].Path != "/a" || locks[0].End != "0" {
		t.Errorf("locks %+v, %v", locks, err)
	}
}

// No lock image is no lock; everything else that is missing or damaged is unknown, never empty.
func TestDamagedImages(t *testing.T) {
	all := func(im Images) error {
		_, e1 := im.Locks()
		_, e2 := im.CopyUp()
		_, e3 := im.Processes()
		return errors.Join(e1, e2, e3)
	}
	if err := all(ImagesIn(minimal(t))); err != nil {
		t.Fatal(err)
	}
	check := func(t *testing.T, fsys fs.FS, want string) {
		t.Helper()
		if err := all(ImagesIn(fsys)); !errors.Is(err, engine.ErrUnknown) || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v", err)
		}
	}
	for name := range minimal(t) {
		fsys := minimal(t)
		whole := fsys[name].Data
		delete(fsys, name)
		check(t, fsys, name)
		for _, cut := range []int{0, 3, 7, 10, len(whole) - 1} {
			fsys[name] = &fstest.MapFile{Data: whole[:cut]}
			check(t, fsys, name)
		}
		other := slices.Clone(whole)
		other[5] ^= 1
		fsys[name] = &fstest.MapFile{Data: other}
		check(t, fsys, name)
	}
	for name, test := range map[string]struct {
		entry *filelock.FileLockEntry
		want  string
	}{
		"stranger":   {filelockEntry(flPosix, typeRead, 2, 3), "not in the tree"},
		"descriptor": {filelockEntry(flPosix, typeRead, 1, 9), "fdinfo does not name"},
		"pipe":       {filelockEntry(flPosix, typeRead, 1, 4), "no file"},
		"kind":       {filelockEntry(16, typeRead, 1, 3), "unknown kind"},
		"lease":      {filelockEntry(flLease, 4, 1, 3), "unknown type"},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := minimal(t)
			fsys["filelocks.img"] = image(t, "filelocks", test.entry)
			check(t, fsys, test.want)
		})
	}
	if err := ImagesIn(minimal(t)).Complete(); !errors.Is(err, engine.ErrUnknown) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a dump without an inventory counts as complete: %v", err)
	}
}

func fown() *fownpb.FownEntry {
	return &fownpb.FownEntry{Uid: u32(0), Euid: u32(0), Signum: u32(0), PidType: u32(0), Pid: u32(0)}
}
