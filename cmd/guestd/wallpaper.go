package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
)

// Where GNOME keeps what is behind all windows.
const (
	backgroundSchema = "org.gnome.desktop.background"
	backgroundKey    = "picture-uri"
	settingsTime     = 20 * time.Second
)

// settings runs gsettings(1) as the guest's user and returns what it printed.
func (s *server) settings(r *http.Request, words ...string) (string, error) {
	argv := append([]string{"gsettings"}, words...)
	o, err := s.run(r, job{argv: argv, timeout: settingsTime})
	switch {
	case err != nil:
		return "", err
	case o.timedOut:
		return "", fmt.Errorf("%s took longer than %s", strings.Join(argv[:2], " "), settingsTime)
	case o.code() != 0:
		said, _ := o.stderr.text()
		return "", fmt.Errorf("%s: exit %d: %s", strings.Join(argv[:2], " "), o.code(), strings.TrimSpace(said))
	}
	out, _ := o.stdout.text()
	return strings.TrimSpace(out), nil
}

// background is the file behind all windows. GVariant's text form of a string is quoted.
func (s *server) background(r *http.Request) (string, error) {
	said, err := s.settings(r, "get", backgroundSchema, backgroundKey)
	if err != nil {
		return "", err
	}
	at, err := url.Parse(strings.Trim(said, `'"`))
	if err != nil || at.Scheme != "file" || at.Path == "" {
		return "", fmt.Errorf("%s %s is %s, no file", backgroundSchema, backgroundKey, said)
	}
	return at.Path, nil
}

// wallpaper sends the file that is behind all windows. The public server calls it
// image/png whatever it is.
func (s *server) wallpaper(w http.ResponseWriter, r *http.Request) {
	if err := s.failed(); err != nil {
		refuse(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	path, err := s.background(r)
	if err != nil {
		refuse(w, http.StatusInternalServerError, "read wallpaper: "+err.Error())
		return
	}
	f, err := openRegular(path, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		refuse(w, http.StatusNotFound, "File not found: "+path)
		return
	}
	if err != nil {
		refuse(w, http.StatusInternalServerError, "read wallpaper: "+err.Error())
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		refuse(w, http.StatusInternalServerError, "read wallpaper: "+err.Error())
		return
	}
	kind := "image/png"
	switch strings.ToLower(filepath.Ext(path)) {
	case ".svg":
		kind = "image/svg+xml"
	case ".jpg", ".jpeg":
		kind = "image/jpeg"
	case ".webp":
		kind = "image/webp"
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Length", strconv.FormatInt(info.Size(), 10))
	io.Copy(w, f)
}

// changeWallpaper sets the file behind all windows, and reads it back.
func (s *server) changeWallpaper(w http.ResponseWriter, r *http.Request) {
	if err := s.failed(); err != nil {
		refuse(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	var q proto.WallpaperRequest
	if err := decode(w, r, &q); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	if q.Path == "" {
		text(w, http.StatusBadRequest, "Path not supplied!")
		return
	}
	path := s.who.expand(q.Path)
	if _, err := os.Stat(path); err != nil {
		text(w, http.StatusNotFound, "File not found: "+path)
		return
	}
	_, err := s.settings(r, "set", backgroundSchema, backgroundKey, (&url.URL{Scheme: "file", Path: path}).String())
	if err == nil {
		var back string
		if back, err = s.background(r); err == nil && back != path {
			err = fmt.Errorf("it is %s", back)
		}
	}
	if err != nil {
		text(w, http.StatusInternalServerError, "Failed to change wallpaper. Error: "+err.Error())
		return
	}
	text(w, http.StatusOK, "Wallpaper changed successfully")
}
