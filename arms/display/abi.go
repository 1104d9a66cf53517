// Package display puts a display driver into a slot whose image has an Xorg and no
// driver that works without a card, as the public OSWorld image. It takes one file
// of one pinned package, and only where the driver fits the image's own server.
//
// What always holds: the image is never written, what is written lies in the slot's
// own layer and was read back; nothing of the image is executed to ask it anything;
// a server or a driver that does not say its ABI is unknown, and unknown is refused.
package display

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
)

// VideoDriver is the class of ABI that display drivers are built against.
const VideoDriver = "X.Org Video Driver"

// ABI is a version of one of Xorg's interfaces.
type ABI struct{ Major, Minor uint16 }

func (a ABI) String() string { return fmt.Sprintf("%d.%d", a.Major, a.Minor) }

// Takes says whether a server with this ABI loads a module that was built against
// another: the same major version, and a minor one that is not newer (Xorg's
// hw/xfree86/loader/loadmod.c, CheckVersion).
func (a ABI) Takes(module ABI) bool { return a.Major == module.Major && module.Minor <= a.Minor }

func abiOf(v uint32) ABI { return ABI{uint16(v >> 16), uint16(v)} }

// Module is what a module of Xorg says of itself.
type Module struct {
	Name  string
	Class string
	ABI   ABI
}

// moduleVersion is XF86ModuleVersionInfo of xf86Module.h on a 64-bit machine: where
// its fields lie.
const (
	atName     = 0
	atClass    = 32 // after modname, vendor, two marks, version and three parts of the module's own
	atABI      = 40
	versionEnd = 44
	infoMark1  = 0xef23fdc5 // MODINFOSTRING1
	infoMark2  = 0x10dc023a // MODINFOSTRING2
)

// ReadModule reads what a module says of itself: the structure that its symbol
// NAMEModuleData points to. It is data, which the loader relocates; nothing runs.
func ReadModule(r io.ReaderAt) (Module, error) {
	f, err := open(r)
	if err != nil {
		return Module{}, fail("read module of Xorg", err)
	}
	m, err := f.module()
	if err != nil {
		return m, fail("read module of Xorg", err)
	}
	return m, nil
}

// ReadServer reads the video driver ABI of an Xorg: of LoaderVersionInfo, the table
// of the versions that it is built with, which LoaderGetABIVersion looks up. The
// table has no symbol where the program is stripped, and is found by what it is: the
// server's own version, the ANSI C ABI 0.4 that has not changed since 2003, and the
// versions of the other three. More than one such table is unknown.
func ReadServer(r io.ReaderAt) (ABI, error) {
	const op = "read ABI of Xorg"
	f, err := open(r)
	if err != nil {
		return ABI{}, fail(op, err)
	}
	if !f.exports("LoaderGetABIVersion") {
		return ABI{}, fail(op, unknown("it exports no LoaderGetABIVersion: no Xorg"))
	}
	section := f.Section(".rodata")
	if section == nil || section.Size > maxFile {
		return ABI{}, fail(op, unknown("it has no constants"))
	}
	data, err := section.Data()
	if err != nil {
		return ABI{}, fail(op, err)
	}
	var found []ABI
	const word = 4
	for at := 0; at+5*word <= len(data); at += word {
		if v, ok := versions(data[at:]); ok {
			found = append(found, v)
		}
	}
	if len(found) != 1 {
		return ABI{}, fail(op, unknown("%d tables look like LoaderVersionInfo, not one", len(found)))
	}
	return found[0], nil
}

// versions is a table of versions, if it is one.
func versions(data []byte) (video ABI, ok bool) {
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(data[4*i:]) }
	plausible := func(a ABI) bool { return a.Major > 0 && a.Major < 100 && a.Minor < 100 }
	const ansi = 4 // 0.4
	// 1.13 to 99: ten million for each major version of the server.
	server, v, input, extension := word(0), abiOf(word(2)), abiOf(word(3)), abiOf(word(4))
	return v, server >= 11300000 && server < 1000000000 && word(1) == ansi && plausible(v) && plausible(input) && plausible(extension)
}

// maxFile bounds what is read of a module or a server.
const maxFile = 64 << 20

type file struct{ *elf.File }

func open(r io.ReaderAt) (file, error) {
	f, err := elf.NewFile(r)
	if err != nil {
		return file{}, err
	}
	if f.Class != elf.ELFCLASS64 || f.Data != elf.ELFDATA2LSB {
		return file{}, unknown("it is of a %s machine, %s", f.Class, f.Data)
	}
	return file{f}, nil
}

func (f file) exports(name string) bool {
	list, err := f.DynamicSymbols()
	if err != nil {
		return false
	}
	for _, s := range list {
		if s.Name == name && s.Section != elf.SHN_UNDEF {
			return true
		}
	}
	return false
}

func (f file) module() (Module, error) {
	const suffix = "ModuleData"
	list, err := f.DynamicSymbols()
	if err != nil {
		return Module{}, err
	}
	var data []elf.Symbol
	for _, s := range list {
		if strings.HasSuffix(s.Name, suffix) && s.Section != elf.SHN_UNDEF {
			data = append(data, s)
		}
	}
	if len(data) != 1 {
		return Module{}, unknown("%d symbols end in %s, not one", len(data), suffix)
	}
	info, err := f.pointer(data[0].Value)
	if err != nil {
		return Module{}, err
	}
	raw, err := f.bytes(info, versionEnd)
	if err != nil {
		return Module{}, err
	}
	if binary.LittleEndian.Uint32(raw[16:]) != infoMark1 || binary.LittleEndian.Uint32(raw[20:]) != infoMark2 {
		return Module{}, unknown("what %s points to has not the marks of a module's version", data[0].Name)
	}
	m := Module{ABI: abiOf(binary.LittleEndian.Uint32(raw[atABI:]))}
	for at, into := range map[uint64]*string{atName: &m.Name, atClass: &m.Class} {
		text, err := f.pointer(info + at)
		if err == nil {
			*into, err = f.text(text)
		}
		if err != nil {
			return m, err
		}
	}
	return m, nil
}

// pointer is what the loader makes of a word: its relocation, or the word itself.
func (f file) pointer(at uint64) (uint64, error) {
	for _, s := range f.Sections {
		if s.Type != elf.SHT_RELA || s.Size > maxFile {
			continue
		}
		data, err := s.Data()
		if err != nil {
			return 0, err
		}
		const entry = 24
		for ; len(data) >= entry; data = data[entry:] {
			if binary.LittleEndian.Uint64(data) != at {
				continue
			}
			info, addend := binary.LittleEndian.Uint64(data[8:]), binary.LittleEndian.Uint64(data[16:])
			relative, symbolic := f.relocations()
			switch kind, symbol := uint32(info), info>>32; {
			case kind == relative:
				return addend, nil
			case kind == symbolic:
				list, err := f.DynamicSymbols() // without the first, which is none
				if err != nil {
					return 0, err
				}
				if symbol == 0 || symbol > uint64(len(list)) || list[symbol-1].Section == elf.SHN_UNDEF {
					return 0, unknown("a pointer to a symbol of another file")
				}
				return list[symbol-1].Value + addend, nil
			}
			return 0, unknown("a relocation of a kind that is not known: %d", uint32(info))
		}
	}
	raw, err := f.bytes(at, 8)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(raw), nil
}

// relocations are the kinds that make a pointer of an address, and of a symbol.
func (f file) relocations() (relative, symbolic uint32) {
	if f.Machine == elf.EM_AARCH64 {
		return uint32(elf.R_AARCH64_RELATIVE), uint32(elf.R_AARCH64_ABS64)
	}
	return uint32(elf.R_X86_64_RELATIVE), uint32(elf.R_X86_64_64)
}

// bytes are those that lie at an address once the file is loaded.
func (f file) bytes(at uint64, n int) ([]byte, error) {
	raw, err := f.upTo(at, n)
	if err == nil && len(raw) < n {
		err = unknown("it ends at %#x", at)
	}
	return raw, err
}

// upTo is bytes, or fewer where what is loaded ends before.
func (f file) upTo(at uint64, n int) ([]byte, error) {
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && at >= p.Vaddr && at-p.Vaddr < p.Filesz {
			raw := make([]byte, min(uint64(n), p.Filesz-(at-p.Vaddr)))
			_, err := p.ReadAt(raw, int64(at-p.Vaddr))
			return raw, err
		}
	}
	return nil, unknown("it has nothing at %#x", at)
}

func (f file) text(at uint64) (string, error) {
	const most = 128
	raw, err := f.upTo(at, most)
	if err != nil {
		return "", err
	}
	end := bytes.IndexByte(raw, 0)
	if end < 0 {
		return "", unknown("a text of more than %d bytes", most)
	}
	return string(raw[:end]), nil
}

func unknown(format string, args ...any) error {
	return fmt.Errorf("%w: %s", engine.ErrUnknown, fmt.Sprintf(format, args...))
}

func fail(op string, err error) error {
	var e *engine.Error
	if errors.As(err, &e) {
		return err
	}
	return &engine.Error{Op: op, Err: err, Hint: "look whether the file is what it is taken for: a module or the server of Xorg"}
}
