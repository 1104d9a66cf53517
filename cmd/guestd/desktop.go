package main

import (
	"errors"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
)

// The requests that look at the screen or at its windows.

func (s *server) screenshot(w http.ResponseWriter, _ *http.Request) {
	data, err := s.screen.png()
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "image/png")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.Write(data)
}

func (s *screen) png() (data []byte, err error) {
	err = s.with(func(c *connection) (err error) {
		data, err = c.capture()
		return err
	})
	// What the compressor worked with is garbage by now, and would be part of a checkpoint otherwise.
	debug.FreeOSMemory()
	return data, err
}

func (s *server) cursorPosition(w http.ResponseWriter, _ *http.Request) {
	var at [2]int16
	err := s.screen.with(func(c *connection) error {
		f, err := c.ask(newRequest(opQueryPointer, 0, uint32(c.root)))
		if err == nil {
			f.bytes(16)
			at = [2]int16{int16(f.u16()), int16(f.u16())}
		}
		return err
	})
	reply(w, at, err)
}

func (s *server) screenSize(w http.ResponseWriter, _ *http.Request) {
	var size proto.Size
	err := s.screen.with(func(c *connection) error {
		size = proto.Size{Width: c.width, Height: c.height}
		return nil
	})
	reply(w, size, err)
}

// windowSize is that of the first managed window one part of whose class is the name asked for.
func (s *server) windowSize(w http.ResponseWriter, r *http.Request) {
	done := bound(w, r, requestLimit, requestTime)
	err := parseForm(r)
	done()
	if name, ok := r.PostForm["app_class_name"]; err == nil && ok {
		var size proto.Size
		err := s.screen.with(func(c *connection) error {
			found, _, err := c.find(func(w window) bool {
				return strings.EqualFold(w.Instance, name[0]) || strings.EqualFold(w.Class, name[0])
			})
			size = proto.Size{Width: found.Width, Height: found.Height}
			return err
		})
		reply(w, size, err)
		return
	}
	refuse(w, http.StatusBadRequest, "app_class_name is required")
}

// reply answers what was read, or why it could not be.
func reply(w http.ResponseWriter, body any, err error) {
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	answer(w, http.StatusOK, body)
}

func (s *server) platform(w http.ResponseWriter, _ *http.Request) {
	text(w, http.StatusOK, "Linux")
}

func (s *server) activateWindow(w http.ResponseWriter, r *http.Request) {
	s.manage(w, r, s.screen.activate, "Window activated successfully")
}

func (s *server) closeWindow(w http.ResponseWriter, r *http.Request) {
	s.manage(w, r, s.screen.close, "Window closed successfully.")
}

func (s *server) manage(w http.ResponseWriter, r *http.Request, do func(func(window) bool) error, done string) {
	var q proto.WindowRequest
	if err := decode(w, r, &q); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	if q.WindowName == "" {
		text(w, http.StatusBadRequest, "window_name required")
		return
	}
	switch err := do(func(have window) bool { return have.matches(q) }); {
	case errors.Is(err, errNoWindow) && q.Strict:
		text(w, http.StatusNotFound, "Window "+q.WindowName+" not found (strict mode).")
	case errors.Is(err, errNoWindow):
		text(w, http.StatusNotFound, "Window "+q.WindowName+" not found (empty results)")
	case err != nil:
		refuse(w, http.StatusInternalServerError, "window "+q.WindowName+": "+err.Error())
	default:
		text(w, http.StatusOK, done)
	}
}
