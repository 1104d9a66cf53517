package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
)

// recordingPath is the public server's.
const recordingPath = "/tmp/recording.mp4"

// How long a recording may take to begin and to end, and how often is looked.
const (
	recordingBegins = 20 * time.Second
	recordingEnds   = 60 * time.Second
	recordingPeriod = 50 * time.Millisecond
)

// recorder is the one recording that there is at a time: ffmpeg, which takes the
// screen from the X server. It is a program of the slot, and goes on after a restore.
type recorder struct {
	mu    sync.Mutex
	pid   int
	mark  uint64
	ended <-chan syscall.WaitStatus // nil where none is in progress
}

// startRecording answers once frames are in the file: where ffmpeg is missing, or
// cannot read the screen, the public server says 200 all the same.
func (s *server) startRecording(w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, text string) {
		answer(w, status, proto.StatusResponse{Status: proto.StatusError, Message: text})
	}
	s.recorder.mu.Lock()
	defer s.recorder.mu.Unlock()
	if s.recorder.ended != nil {
		refuse(http.StatusBadRequest, "Recording is already in progress.")
		return
	}
	err := s.failed()
	var size proto.Size
	if err == nil {
		err = s.screen.with(func(c *connection) error {
			size = proto.Size{Width: c.width, Height: c.height}
			return nil
		})
	}
	if err == nil {
		err = s.record(r, size)
	}
	if err != nil {
		refuse(http.StatusInternalServerError, "start recording: "+err.Error())
		return
	}
	answer(w, http.StatusOK, proto.StatusResponse{Status: proto.StatusSuccess, Message: "Started recording."})
}

func (s *server) record(r *http.Request, size proto.Size) error {
	const name = "ffmpeg"
	path, err := s.who.program(name)
	if err != nil {
		return err
	}
	if err := os.Remove(recordingPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(proto.LogDir, 0o755); err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	said, err := os.OpenFile(filepath.Join(proto.LogDir, "_recording.log"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	defer said.Close()
	// The fastest of x264's presets: the desktop beside it is drawn on the same processors.
	argv := []string{name, "-nostdin", "-loglevel", "warning", "-y", "-f", "x11grab", "-draw_mouse", "1", "-framerate", "30",
		"-s", fmt.Sprintf("%dx%d", size.Width, size.Height), "-i", proto.Display + ".0",
		"-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-flush_packets", "1", recordingPath}
	mark := s.procs.mark()
	pid, ended, err := s.procs.start(path, argv, s.who.attributes(nil, null.Fd(), null.Fd(), said.Fd()), mark)
	if err != nil {
		return fmt.Errorf("start %s: %w", path, err)
	}
	for begin := time.Now(); time.Since(begin) < recordingBegins; {
		if info, err := os.Stat(recordingPath); err == nil && info.Size() > 0 {
			s.recorder.pid, s.recorder.mark, s.recorder.ended = pid, mark, ended
			return nil
		}
		select {
		case status := <-ended:
			return fmt.Errorf("%s ended with %d; its log is %s", name, status.ExitStatus(), said.Name())
		case <-r.Context().Done():
			return errors.Join(r.Context().Err(), endTree(pid, mark, killLimit))
		case <-time.After(recordingPeriod):
		}
	}
	return errors.Join(fmt.Errorf("%s wrote nothing in %s; its log is %s", name, recordingBegins, said.Name()), endTree(pid, mark, killLimit))
}

// endRecording has ffmpeg finish its file and sends that.
func (s *server) endRecording(w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, text string) {
		answer(w, status, proto.StatusResponse{Status: proto.StatusError, Message: text})
	}
	s.recorder.mu.Lock()
	defer s.recorder.mu.Unlock()
	if s.recorder.ended == nil {
		refuse(http.StatusBadRequest, "No recording in progress to stop.")
		return
	}
	if err := s.procs.signal(s.recorder.pid, syscall.SIGINT); err != nil {
		refuse(http.StatusInternalServerError, "end recording: "+err.Error())
		return
	}
	ended := s.recorder.ended
	s.recorder.ended = nil
	select {
	case <-ended: // ffmpeg exits with 255 for the signal: the file says whether it finished
	case <-time.After(recordingEnds):
		err := endTree(s.recorder.pid, s.recorder.mark, killLimit)
		refuse(http.StatusInternalServerError, errors.Join(fmt.Errorf("end recording: ffmpeg did not end in %s", recordingEnds), err).Error())
		return
	}
	f, err := openRegular(recordingPath, os.O_RDONLY, 0)
	if err != nil {
		refuse(http.StatusNotFound, "Recording failed")
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		refuse(http.StatusNotFound, "Recording failed")
		return
	}
	w.Header().Set("Content-Type", "video/mp4")
	w.Header().Set("Content-Disposition", "attachment; filename="+filepath.Base(recordingPath))
	w.Header().Set("Content-Length", strconv.FormatInt(info.Size(), 10))
	io.Copy(w, f)
}
