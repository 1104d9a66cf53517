package criu

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/fdinfo"
	"google.golang.org/protobuf/proto"

	"github.com/drumsbench/drumsbench/engine"
)

// besideName is what CRIU appends to the name of an unlinked file whose name another file has (open_path in criu/files-reg.c).
const besideName = ".cr_link"

// NameGhosts corrects the images of a dump in dir, so that a restore finds the name of each unlinked file free. CRIU
// gives such a file its old name for the moment in which a task opens it. Where another file has that name it takes
// NAME.cr_link instead, and writes so into memory that all restoring tasks share, as the address of a text that is
// each task's own; it takes that back after it has let the next task go on, which then finds an empty name and fails.
// With NAME.cr_link in the images nothing has to be written there, and restored tasks see the name that they would
// have seen.
//
// taken says whether the slot's root file system has a file at a path. Files of other file systems are left as they
// are. It comes before the images are sealed, and reads back what it wrote; named is how many files it changed.
func NameGhosts(dir string, taken func(path string) (bool, error)) (named int, err error) {
	const op, name = "name unlinked files", "files.img"
	im := OpenImages(dir)
	f, err := im.files()
	if err != nil {
		return 0, err
	}
	all, err := entries[fdinfo.FileEntry](im, "files", name)
	if err != nil {
		return 0, err
	}
	for _, e := range all {
		reg := e.GetReg()
		if reg == nil || !f.unlinked[e.GetId()] || reg.GetExt() || !regular(reg) {
			continue
		}
		at, ok, err := f.onRoot(reg)
		if err != nil {
			return 0, err
		}
		if !ok {
			continue
		}
		if ok, err = taken(at); err != nil {
			return 0, &engine.Error{Op: op, Err: err}
		}
		if ok {
			reg.Name = proto.String(reg.GetName() + besideName)
			named++
		}
	}
	if named > 0 {
		if err := writeFiles(dir, name, all); err != nil {
			return 0, &engine.Error{Op: op, Err: err}
		}
	}
	return named, nil
}

// writeFiles writes files.img anew and reads it back.
func writeFiles(dir, name string, all []*fdinfo.FileEntry) error {
	data := binary.LittleEndian.AppendUint32(nil, magics["common"])
	data = binary.LittleEndian.AppendUint32(data, magics["files"])
	for _, e := range all {
		body, err := proto.Marshal(e)
		if err != nil {
			return fmt.Errorf("encode %s: %w", name, err)
		}
		data = append(binary.LittleEndian.AppendUint32(data, uint32(len(body))), body...)
	}
	info, err := os.Stat(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, name), data, info.Mode().Perm()); err != nil {
		return err
	}
	back, err := entries[fdinfo.FileEntry](OpenImages(dir), "files", name)
	if err != nil {
		return err
	}
	same := len(back) == len(all)
	for i := 0; same && i < len(all); i++ {
		same = proto.Equal(back[i], all[i])
	}
	if !same {
		return fmt.Errorf("%w: %s reads back as something else than what was written", engine.ErrUnknown, name)
	}
	return nil
}
