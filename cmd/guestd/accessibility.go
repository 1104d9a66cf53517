package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
)

// accessibilityScript asks AT-SPI. It is the image's own python3 with its own
// bindings that runs it: this program is static and speaks no D-Bus.
//
//go:embed accessibility.py
var accessibilityScript string

// accessibilityTime is how long a whole desktop may take.
const accessibilityTime = 60 * time.Second

// askAccessibility runs the script as the guest's user.
func (s *server) askAccessibility(r *http.Request, what string) (string, error) {
	const op = "ask AT-SPI"
	o, err := s.run(r, job{argv: []string{"python3", "-c", accessibilityScript, what}, timeout: accessibilityTime})
	switch {
	case err != nil:
		return "", fmt.Errorf("%s: %w", op, err)
	case o.timedOut:
		return "", fmt.Errorf("%s: no answer in %s", op, accessibilityTime)
	case o.stdout.truncated:
		return "", fmt.Errorf("%s: the answer has more than %d bytes", op, proto.OutputLimit)
	case o.code() != 0:
		said, _ := o.stderr.text()
		lines := strings.Split(strings.TrimSpace(said), "\n")
		return "", fmt.Errorf("%s: %s", op, lines[len(lines)-1])
	}
	out, _ := o.stdout.text()
	return strings.TrimSuffix(out, "\n"), nil
}

func (s *server) accessibility(w http.ResponseWriter, r *http.Request) {
	if err := s.onScreen(); err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	tree, err := s.askAccessibility(r, "tree")
	if err == nil && tree == "" {
		err = errors.New("ask AT-SPI: it printed nothing")
	}
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	answer(w, http.StatusOK, proto.AccessibilityResponse{AT: tree})
}

// onScreen says why there is no screen to ask about.
func (s *server) onScreen() error {
	if err := s.failed(); err != nil {
		return err
	}
	return s.screen.with(func(*connection) error { return nil })
}

// terminal: only AT-SPI knows the text of a gnome-terminal. Where no window of one
// is there it is null, as for every other terminal.
func (s *server) terminal(w http.ResponseWriter, r *http.Request) {
	refuse := func(err error) {
		answer(w, http.StatusInternalServerError, proto.ExecuteResponse{Status: proto.StatusError, Message: err.Error()})
	}
	if err := s.onScreen(); err != nil {
		refuse(err)
		return
	}
	a := proto.TerminalResponse{Status: proto.StatusSuccess}
	err := s.screen.with(func(c *connection) error {
		_, _, err := c.find(func(w window) bool { return strings.EqualFold(w.Class, "Gnome-terminal") })
		return err
	})
	switch {
	case errors.Is(err, errNoWindow), errors.Is(err, errNoManager):
		answer(w, http.StatusOK, a)
		return
	case err != nil:
		refuse(err)
		return
	}
	said, err := s.askAccessibility(r, "terminal")
	if err == nil {
		err = json.Unmarshal([]byte(said), &a.Output)
	}
	if err != nil {
		refuse(err)
		return
	}
	answer(w, http.StatusOK, a)
}
