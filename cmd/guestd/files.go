package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// file sends a file. It goes out in chunks whose end mark is missing when the
// reading fails half way: a client cannot take a part for the whole.
func (s *server) file(w http.ResponseWriter, r *http.Request) {
	done := bound(w, r, requestLimit, requestTime)
	err := r.ParseForm()
	done()
	if err != nil || r.PostForm.Get("file_path") == "" {
		refuse(w, http.StatusBadRequest, "file_path is required")
		return
	}
	f, err := openRegular(s.who.expand(r.PostForm.Get("file_path")), os.O_RDONLY, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		refuse(w, http.StatusNotFound, "File not found")
		return
	case err != nil:
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	defer f.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	if _, err := io.Copy(w, f); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// openRegular opens a regular file and nothing else; it does not wait for the
// other end of a FIFO.
func openRegular(path string, flags int, mode fs.FileMode) (*os.File, error) {
	f, err := os.OpenFile(path, flags|unix.O_NONBLOCK, mode)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// upload writes a file as it comes in: it is held neither in memory nor in a
// temporary file, which would be found again in the slot's checkpoint.
func (s *server) upload(w http.ResponseWriter, r *http.Request) {
	defer bound(w, r, uploadLimit, uploadTime)()
	size, status, err := s.store(r)
	if err != nil {
		refuse(w, status, err.Error())
		return
	}
	text(w, http.StatusOK, fmt.Sprintf("File Uploaded: %d bytes", size))
}

func (s *server) store(r *http.Request) (size int64, status int, err error) {
	parts, err := r.MultipartReader()
	if err != nil {
		return 0, http.StatusBadRequest, err
	}
	var path string
	mode := fs.FileMode(0o644) // what 0666 is under our umask
	for {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			return 0, http.StatusBadRequest, errors.New("file_path and file_data are required, in this order")
		}
		if err != nil {
			return 0, http.StatusBadRequest, err
		}
		switch part.FormName() {
		case "file_path":
			if path, err = value(part); err != nil {
				return 0, http.StatusBadRequest, err
			}
		case "mode":
			text, err := value(part)
			if err != nil {
				return 0, http.StatusBadRequest, err
			}
			bits, err := strconv.ParseUint(text, 8, 32)
			if err != nil || bits > 0o777 {
				return 0, http.StatusBadRequest, fmt.Errorf("mode %q is not permission bits in octal", text)
			}
			mode = fs.FileMode(bits)
		case "file_data":
			if path == "" {
				return 0, http.StatusBadRequest, errors.New("file_path must come before file_data")
			}
			if size, err = s.write(s.who.expand(path), mode, part); err != nil {
				return 0, http.StatusInternalServerError, err
			}
			// What follows is read to its end, so that the connection closes in order.
			for {
				if _, err := parts.NextPart(); errors.Is(err, io.EOF) {
					return size, http.StatusOK, nil
				} else if err != nil {
					return 0, http.StatusBadRequest, err
				}
			}
		}
	}
}

func value(part *multipart.Part) (string, error) {
	const most = 8 << 10
	text, err := io.ReadAll(io.LimitReader(part, most+1))
	if err == nil && len(text) > most {
		err = fmt.Errorf("field %s is too long", part.FormName())
	}
	return string(text), err
}

// write replaces the content of a file in place, as the public server does: its
// links, owner and mode stay. A new file, and new folders on its way, belong to the guest's user.
func (s *server) write(path string, mode fs.FileMode, content io.Reader) (int64, error) {
	if err := s.who.makeFolders(filepath.Dir(path)); err != nil {
		return 0, err
	}
	f, err := openRegular(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	made := err == nil
	if errors.Is(err, fs.ErrExist) {
		f, err = openRegular(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	}
	if err != nil {
		return 0, err
	}
	if made {
		err = errors.Join(f.Chown(int(s.who.uid), int(s.who.gid)), f.Chmod(mode)) // as asked, whatever the umask is
	}
	var size int64
	if err == nil {
		size, err = io.Copy(f, content)
	}
	return size, errors.Join(err, f.Close())
}

// makeFolders makes what is missing of a path.
func (who *identity) makeFolders(path string) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil
	}
	if parent := filepath.Dir(path); parent != path {
		if err := who.makeFolders(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	return os.Lchown(path, int(who.uid), int(who.gid))
}
