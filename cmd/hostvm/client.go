package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/drumsbench/drumsbench/engine"
)

// ErrLost is a script whose end nobody has seen: the machine went away under it.
var ErrLost = errors.New("the machine went away before the script ended")

func (m *Machine) url(path string) string { return fmt.Sprintf("http://127.0.0.1:%d%s", m.port, path) }

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func (m *Machine) request(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, m.url(path), body)
	if err != nil {
		return nil, err
	}
	answer, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		defer answer.Body.Close()
		said, _ := io.ReadAll(io.LimitReader(answer.Body, 1000))
		return nil, fmt.Errorf("the agent says %s: %s", answer.Status, strings.TrimSpace(string(said)))
	}
	return answer, nil
}

// alive is the boot id of a machine whose agent answers.
func (m *Machine) alive(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	answer, err := m.request(ctx, http.MethodGet, "/alive", nil)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	id, err := io.ReadAll(answer.Body)
	return strings.TrimSpace(string(id)), err
}

// Run runs a script of bash as root and copies what it says to out as it comes.
// ErrLost where the machine went away; when ctx ends, so does the script.
func (m *Machine) Run(ctx context.Context, script string, out io.Writer) (int, error) {
	const op = "run script in machine"
	answer, err := m.request(ctx, http.MethodPost, "/run", strings.NewReader(script))
	if err != nil {
		return 0, &engine.Error{Op: op, Err: err, Log: m.Console()}
	}
	defer answer.Body.Close()
	if _, err = io.Copy(out, answer.Body); err == nil {
		var code int
		if code, err = strconv.Atoi(answer.Trailer.Get(exitTrailer)); err == nil {
			return code, nil
		}
	}
	return 0, &engine.Error{Op: op, Err: errors.Join(ErrLost, context.Cause(ctx), err), Log: m.Console()}
}

// PutFile copies a file of this host into the machine.
func (m *Machine) PutFile(ctx context.Context, from, to string) error {
	const op = "copy file into machine"
	f, err := os.Open(from)
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	query := url.Values{"path": {to}, "mode": {fmt.Sprintf("%o", info.Mode().Perm())}}
	answer, err := m.request(ctx, http.MethodPost, "/put?"+query.Encode(), f)
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	return answer.Body.Close()
}

// Get writes a folder of the machine to out, as tar.
func (m *Machine) Get(ctx context.Context, folder string, out io.Writer) error {
	const op = "bring folder from machine"
	answer, err := m.request(ctx, http.MethodGet, "/get?"+url.Values{"path": {folder}}.Encode(), nil)
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	defer answer.Body.Close()
	if _, err := io.Copy(out, answer.Body); err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	if answer.Trailer.Get(exitTrailer) != "0" {
		return &engine.Error{Op: op, Err: fmt.Errorf("tar of %s failed: %w", folder, engine.ErrUnknown)}
	}
	return nil
}

func (m *Machine) getFile(ctx context.Context, folder, to string) error {
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	return errors.Join(m.Get(ctx, folder, f), f.Close())
}
