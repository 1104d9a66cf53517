package criu

import (
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/drumsbench/drumsbench/engine"
)

// reservation is the size from which an anonymous mapping that cannot be written is taken for a reservation of addresses.
const reservation = 64 << 20

// Unreserve corrects the images of a dump in dir for a restore with lazy pages, and returns how many mappings were
// changed. CRIU makes private mappings writable while it restores them so (map_private_vma in criu/mem.c), and the
// kernel refuses that for an address space that a browser has reserved and not made writable: it is larger than all
// memory. Marked with MAP_NORESERVE, as later CRIUs do by themselves, such a mapping is not counted; what the program
// makes writable of it later is not either.
func Unreserve(dir string) (int, error) {
	f, err := OpenImages(dir).files()
	if err != nil {
		return 0, err
	}
	changed := 0
	for pid, maps := range f.maps {
		touched := false
		for _, v := range maps.GetVmas() {
			if !canBeLazy(v) || v.GetProt()&unix.PROT_WRITE != 0 || v.GetFlags()&unix.MAP_NORESERVE != 0 || v.GetEnd()-v.GetStart() < reservation {
				continue
			}
			v.Flags = proto.Uint32(v.GetFlags() | unix.MAP_NORESERVE)
			touched = true
			changed++
		}
		if !touched {
			continue
		}
		if err := writeMaps(dir, pid, maps); err != nil {
			return changed, &engine.Error{Op: "mark reservations", Err: err}
		}
	}
	return changed, nil
}
