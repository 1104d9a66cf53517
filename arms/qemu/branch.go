package qemu

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// A machine that was restored by the method file has a memory of its own: what it
// has not written lies in the checkpoint's file, what it has nowhere else. Siblings
// of what is saved of it shall share a file all the same. So its whole state is
// written to a file, and a second QEMU, which ends before it ran an instruction,
// takes that over onto a memory file that it shares, and is saved as any provisioned
// machine is. One of the two lives at a time: the slot's bounds hold one.
//
// The file between them is mapped-ram where QEMU has that (9.0 and newer): each page has a
// place in it and is written there once, the file is no larger than the machine and has holes
// where memory is empty. An older QEMU writes a plain stream.

// Files of a branch in the making, beside those of a checkpoint.
const (
	carryFile = "carry"
	topFile   = "top.qcow2"
)

// factCarried says in which form a branch's state went from one QEMU to the next.
const factCarried = "machine.carried"

// branch saves a stopped machine that was restored by the method file, and ends it.
// The checkpoint needs no other one afterwards.
func (s *slot) branch(ctx context.Context, dir string) (err error) {
	old := s.now
	can, err := saving(ctx, old.mon.qmp, MethodFile)
	if err != nil {
		return err
	}
	form, told := "", "stream"
	if can[mappedRAM] {
		form, told = mappedRAM, mappedRAM
	}
	defer engine.StartSpan(ctx, "branch")()
	carry, top, layer := filepath.Join(dir, carryFile), filepath.Join(dir, topFile), in(*old.from, diskFile)
	if err := old.saveState(ctx, "carry", form, carry); err != nil {
		return err
	}
	if err := s.end(ctx); err != nil {
		return err
	}
	if err := os.Rename(old.file(diskFile), top); err != nil {
		return err
	}
	if err := s.Vacate(ctx); err != nil {
		return err
	}
	t, err := s.move(old.shape)
	if err != nil {
		return err
	}
	s.mu.Lock()
	t.parked = true // never a slot
	s.mu.Unlock()
	t.policy, t.exclude = old.policy, old.exclude
	t.told = append(old.told, bench.Fact{Name: factCarried, Known: true, Value: told, Source: queryCapabilities, View: engine.ViewHost})
	if err := os.Rename(top, t.file(diskFile)); err != nil {
		return err
	}
	l := launch{initrd: s.root.boot.initramfs, layers: []string{layer}, shared: true}
	if l.memory, err = os.OpenFile(filepath.Join(dir, memoryFile), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600); err != nil {
		return err
	}
	defer l.memory.Close()
	if err := l.memory.Truncate(t.shape.Memory); err != nil {
		return err
	}
	if l.incoming, err = os.Open(carry); err != nil {
		return err
	}
	defer l.incoming.Close()
	if err := s.start(ctx, t, l); err != nil {
		return err
	}
	defer t.detach()
	loaded, err := t.loadState(ctx, form)
	if err != nil {
		return s.explain(ctx, t, err)
	}
	t.told = append(t.told, loaded.told())
	if err := t.saveState(ctx, "save", ignoreShared, filepath.Join(dir, machineFile)); err != nil {
		return err
	}
	if err := s.end(ctx); err != nil {
		return err
	}
	if err := os.Remove(carry); err != nil {
		return err
	}
	if err := s.flatten(ctx, layer, t.file(diskFile), filepath.Join(dir, diskFile)); err != nil {
		return err
	}
	return s.newFresh(ctx, dir)
}

// flatten makes one layer over the image out of a disk and the layer that it
// stands on, which stays as it is.
func (s *slot) flatten(ctx context.Context, layer, top, to string) error {
	if err := copyFile(layer, to, 0o600); err != nil {
		return err
	}
	upper, err := os.OpenFile(top, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer upper.Close()
	lower, err := os.OpenFile(to, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer lower.Close()
	node := func(fd int, backing any) map[string]any {
		return map[string]any{"driver": "qcow2", "file": map[string]any{"driver": "file", "filename": inherited(fd)}, "backing": backing}
	}
	// As when the machine ran: each backing is named here, and no header is asked.
	const first = 3
	below := node(first+1, node(first+2, nil))
	files := []*os.File{upper, lower, s.root.file}
	if _, err := s.arm.qemuImg(ctx, files, "commit", "-q", "-d", "json:"+object(node(first, below))); err != nil {
		return err
	}
	if _, err := s.arm.qemuImg(ctx, files[1:], "check", "-q", "json:"+object(node(first, nil))); err != nil {
		return fmt.Errorf("read flattened disk back: %w", err)
	}
	return nil
}
