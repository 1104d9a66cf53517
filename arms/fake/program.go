package fake

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// errEnded: the tree ended while the program ran; nobody answers.
var errEnded = errors.New("the tree has ended")

// program is one run of a built-in program.
type program struct {
	server    *server
	ctx       context.Context
	out, errs []byte
	// texts that run texts, so far.
	texts int
}

// run returns the exit status, or minus the signal that ended the program.
// context.DeadlineExceeded where its time was up.
func (p *program) run(argv []string) (int, error) {
	t := p.server.tenancy
	name, args := argv[0], argv[1:]
	var at string
	var f file
	found := false
	p.server.with(func(w *world) { at, f, found = w.program(name) })
	if !found {
		return 0, missing{name}
	}
	name = path.Base(at)
	if string(f.Data) != string(builtin(name)) {
		return p.text(string(f.Data), append([]string{at}, args...)...)
	}
	switch name {
	case "sleep":
		seconds, err := strconv.ParseFloat(first(args), 64)
		if err != nil {
			return p.wrong(2, "sleep: invalid time"), nil
		}
		return 0, p.wait(time.Duration(seconds * float64(time.Second)))
	case "kill-server":
		p.server.stop()
		return 0, errEnded
	case "canary":
		return p.canary(args)
	case "remember":
		if t.fault("checkpoint-written") {
			if err := damage(filepath.Join(t.from, memoryFile)); err != nil {
				return p.wrong(1, "remember: "+err.Error()), nil
			}
		}
		if t.fault("remember-ignored") {
			return 0, nil
		}
	case "sh":
		if len(args) != 2 || args[0] != "-c" {
			return p.wrong(2, "sh: only -c TEXT"), nil
		}
		return p.text(args[1])
	case "test":
		switch {
		case t.fault("checker-missing"):
			return p.wrong(127, "sh: test: not found"), nil
		case t.fault("checker-hang"):
			return 0, p.wait(1 << 62)
		case t.fault("checker-signal"):
			return -11, nil
		case t.fault("checker-stub"):
			return p.wrong(1, "ModuleNotFoundError: No module named 'judge'"), nil
		case t.fault("checker-exception"):
			return p.wrong(1, "Traceback (most recent call last):\nValueError"), nil
		case t.fault("checker-kills-server"):
			p.server.stop()
			return 0, errEnded
		}
	case "mv":
		switch {
		case t.fault("act-error"):
			return p.wrong(1, "mv: input/output error"), nil
		case t.fault("act-kills-server"):
			p.server.stop()
			return 0, errEnded
		}
	}
	code, err := 0, error(nil)
	p.server.with(func(w *world) {
		code, err = p.onWorld(w, name, args)
		if name != "mv" {
			return
		}
		if t.fault("canary-changed") {
			w.touchUploaded()
		}
		if t.fault("checker-swapped") || t.fault("checker-swapped-unseen") {
			w.files["/usr/bin/test"] = file{Mode: 0o755, Data: []byte("true\n")}
		}
	})
	return code, err
}

// text runs a text as sh does; argv are $0 and the arguments.
func (p *program) text(text string, argv ...string) (int, error) {
	var words []string
	for _, word := range strings.Fields(text) {
		switch {
		case word == "$0" && len(argv) > 0:
			words = append(words, argv[0])
		case word == `"$@"` && len(argv) > 0:
			words = append(words, argv[1:]...)
		default:
			words = append(words, word)
		}
	}
	if len(words) == 0 {
		return 0, nil
	}
	if p.texts++; p.texts > 8 {
		return p.wrong(126, "sh: too many levels of texts"), nil
	}
	code, err := p.run(words)
	if errors.As(err, new(missing)) {
		return p.wrong(127, err.Error()), nil
	}
	return code, err
}

// missing is the error for a program that is not built in.
type missing struct{ name string }

func (m missing) Error() string { return m.name + ": no such program" }

func (p *program) wait(d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-p.server.done:
		return errEnded
	case <-p.ctx.Done():
		return p.ctx.Err()
	}
}

// wrong prints an error and returns the exit status.
func (p *program) wrong(code int, text string) int {
	p.errs = append(p.errs, text+"\n"...)
	return code
}

func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// onWorld runs the programs that need the world and no time.
func (p *program) onWorld(w *world, name string, args []string) (int, error) {
	flags, names := []string{}, []string{}
	for _, a := range args {
		if strings.HasPrefix(a, "-") && len(a) > 1 {
			flags = append(flags, a)
		} else {
			names = append(names, a)
		}
	}
	var err error
	switch name {
	case "remember":
		w.Notes = append(w.Notes, strings.Join(args, " "))
	case "recall":
		for _, line := range w.Notes {
			p.out = append(p.out, line+"\n"...)
		}
	case "true":
	case "false":
		return 1, nil
	case "echo":
		p.out = append(p.out, strings.Join(args, " ")+"\n"...)
	case "exit", "signal":
		n, err := strconv.Atoi(first(args))
		if err != nil || n < 0 || n > 255 {
			return p.wrong(2, name+": a number is needed"), nil
		}
		if name == "signal" {
			n = -n
		}
		return n, nil
	case "head":
		n, err := strconv.Atoi(first(names))
		if err != nil || !slices.Equal(names[1:], []string{"/dev/zero"}) || !slices.Equal(flags, []string{"-c"}) {
			return p.wrong(2, "head: only -c N /dev/zero"), nil
		}
		p.out = append(p.out, make([]byte, n)...)
	case "test":
		if len(args) != 2 {
			return p.wrong(2, "test: only -e, -f, -d or -s FILE"), nil
		}
		f, ok := w.files[w.path(args[1])]
		if ok = ok && (args[0] == "-e" || args[0] == "-f" && !f.Directory || args[0] == "-d" && f.Directory || args[0] == "-s" && len(f.Data) > 0); !ok {
			return 1, nil
		}
	case "cat":
		for _, n := range names {
			f, ok := w.files[w.path(n)]
			if !ok || f.Directory {
				return p.wrong(1, "cat: "+n+": no such file"), nil
			}
			p.out = append(p.out, f.Data...)
		}
	case "touch":
		for _, n := range names {
			if _, ok := w.files[w.path(n)]; !ok {
				err = errors.Join(err, w.write(w.path(n), nil, 0o644))
			}
		}
	case "write", "append":
		if len(args) != 2 {
			return p.wrong(2, name+": FILE TEXT"), nil
		}
		data := []byte(args[1])
		if name == "append" {
			data = append(slices.Clone(w.files[w.path(args[0])].Data), data...)
		}
		err = w.write(w.path(args[0]), data, 0o644)
	case "mkdir":
		for _, n := range names {
			err = errors.Join(err, w.mkdir(w.path(n), slices.Contains(flags, "-p")))
		}
	case "rm":
		for _, n := range names {
			err = errors.Join(err, w.remove(w.path(n), strings.Contains(strings.Join(flags, ""), "r"), strings.Contains(strings.Join(flags, ""), "f")))
		}
	case "mv", "cp":
		if len(names) != 2 {
			return p.wrong(2, name+": FROM TO"), nil
		}
		err = w.copy(w.path(names[0]), w.path(names[1]), name == "mv")
	default:
		return 0, missing{name}
	}
	if err != nil {
		return p.wrong(1, name+": "+err.Error()), nil
	}
	return 0, nil
}

func (w *world) mkdir(p string, parents bool) error {
	switch f, ok := w.files[p]; {
	case ok && parents && f.Directory:
		return nil
	case ok:
		return fmt.Errorf("%s: file exists", p)
	}
	if parents {
		if err := w.mkdir(path.Dir(p), true); err != nil {
			return err
		}
	}
	if err := w.parent(p); err != nil {
		return err
	}
	w.files[p] = file{Directory: true, Mode: 0o755}
	return nil
}

func (w *world) remove(p string, recursive, force bool) error {
	f, ok := w.files[p]
	switch {
	case !ok && force:
		return nil
	case !ok:
		return fmt.Errorf("%s: no such file or directory", p)
	case f.Directory && !recursive, p == "/":
		return fmt.Errorf("%s: is a directory", p)
	}
	for _, q := range w.below(p) {
		delete(w.files, q)
	}
	return nil
}

// copy also moves. Into a directory it keeps the name, as mv(1) and cp(1) do.
func (w *world) copy(from, to string, move bool) error {
	if _, ok := w.files[from]; !ok {
		return fmt.Errorf("%s: no such file or directory", from)
	}
	if f, ok := w.files[to]; ok && f.Directory {
		to = path.Join(to, path.Base(from))
	}
	if to == from || strings.HasPrefix(to, from+"/") {
		return fmt.Errorf("%s: cannot go into itself", from)
	}
	if err := w.parent(to); err != nil {
		return err
	}
	for _, q := range w.below(from) {
		w.files[to+strings.TrimPrefix(q, from)] = w.files[q]
		if move {
			delete(w.files, q)
		}
	}
	return nil
}
