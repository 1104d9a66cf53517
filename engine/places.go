package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// An engine that is killed leaves its slots as they are. Where one is, is noted in the
// scratch directory once it is usable, so that who goes on with the run can go on in it.
// What a note says is believed only as far as the ledger and the host agree.

func (ws *Workspace) places() string { return filepath.Join(ws.Work, "places") }

// NotePlace writes down where a usable slot is, in place of what was noted of it before.
// Of one that would end with this process, that cannot be taken over, or that does not
// know where it is, nothing stays noted. Nothing is synced: after a reboot there is no slot.
func (ws *Workspace) NotePlace(p Place) error {
	path := filepath.Join(ws.places(), p.Name()+".json")
	err := func() error {
		var h bench.PlaceHandle
		lasting, ok := p.(Lasting)
		if f, fleets := p.(Fleeting); ok && !(fleets && f.Fleeting()) {
			var err error
			h, err = lasting.Handle()
			ok = err == nil // who does not know where he is cannot be found there
		} else {
			ok = false
		}
		if !ok {
			if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		}
		text, err := json.Marshal(h)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(ws.places(), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path+".new", text, 0o600); err != nil {
			return err
		}
		return os.Rename(path+".new", path)
	}()
	if err != nil {
		return &Error{Op: "note where slot " + p.Name() + " is", Err: err}
	}
	return nil
}

// maxPlaceNote bounds a note, in bytes: layers of a deep chain of checkpoints fill a hundredth of it.
const maxPlaceNote = 1 << 20

// NotedPlace is what was noted last of a slot. fs.ErrNotExist if nothing was.
func (ws *Workspace) NotedPlace(slot string) (h bench.PlaceHandle, err error) {
	path := filepath.Join(ws.places(), slot+".json")
	st, err := os.Lstat(path)
	if err == nil && (!st.Mode().IsRegular() || st.Size() > maxPlaceNote) {
		err = fmt.Errorf("%w: %s is no note of ours", ErrRefused, path)
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(path)
	}
	if err == nil {
		err = json.Unmarshal(text, &h)
	}
	if err == nil && string(h.Name) != slot {
		err = fmt.Errorf("%w: it is of %q", ErrRefused, h.Name)
	}
	if err != nil {
		return h, &Error{Op: "read where slot " + slot + " is", Err: err}
	}
	return h, nil
}

// Handed says which finished step of an interrupted run gave each place that a step
// which is run anew takes: the slot's name by the step's. kept is as [Plan.Keep] chose.
func (p *Plan) Handed(kept map[string]bench.Receipt) map[string]string {
	givers := map[string]string{}
	for i := range p.nodes {
		if _, stays := kept[p.Steps[i].Id]; stays {
			continue
		}
		for _, in := range p.nodes[i].inputs {
			if in.builder == nil || in.typ != reflect.TypeFor[Place]() {
				continue
			}
			from := p.Steps[in.step].Id
			if _, stays := kept[from]; stays {
				givers[from] = p.Steps[i].Slot
			}
		}
	}
	return givers
}
