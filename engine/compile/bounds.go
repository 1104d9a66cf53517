package compile

import (
	"fmt"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"time"

	"cuelang.org/go/cue/ast"
	cueerrors "cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/scanner"
	"cuelang.org/go/cue/token"

	"github.com/drumsbench/drumsbench/engine"
)

// A manifest is a program of somebody else's, in a language that always ends and
// need not end soon: a list of lists of lists is a few lines. So what is read is
// bounded in size and depth, and its evaluation in time and memory.

// Bounds of one file. Ours have some hundred lines and ten levels.
const (
	maxFile = 1 << 20 // bytes
	// maxNest is how deep brackets may stand in each other.
	maxNest = 100
	// maxChain is how many operators, selectors or labels may follow each other in one value without a comma: each is a level of the tree.
	maxChain = 1000
)

// Bounds of an evaluation, which of a manifest takes well under a second and some
// tens of megabytes. Variables for tests.
var (
	maxTime         = 2 * time.Minute
	maxMemory int64 = 2 << 30
)

// errMuch says that a bound was passed.
type errMuch string

func (e errMuch) Error() string { return string(e) }
func (e errMuch) Unwrap() error { return engine.ErrRefused }

// within returns what f does, or an error once that takes longer or more memory
// than any manifest does. CUE cannot be stopped: f runs on then, and the caller's
// process ought to end.
func within[T any](f func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	const op = "evaluate manifest"
	done := make(chan result, 1)
	began, least := time.Now(), heap() // least: what others left is collected meanwhile
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- result{err: &engine.Error{Op: op, Err: fmt.Errorf("%w: CUE failed on it: %v", engine.ErrRefused, r)}}
			}
		}()
		v, err := f()
		done <- result{v, err}
	}()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case r := <-done:
			return r.v, r.err
		case <-look.C:
			why, now := "", heap()
			least = min(least, now)
			if time.Since(began) > maxTime {
				why = fmt.Sprintf("it takes longer than %s", maxTime)
			} else if now-least > maxMemory {
				why = fmt.Sprintf("it takes more than %d MiB of memory", maxMemory>>20)
				debug.SetGCPercent(10) // what runs on shall not take the host's
			}
			if why != "" {
				var none T
				return none, &engine.Error{Op: op, Err: errMuch(why), Hint: "a manifest is a few hundred values: look for lists or disjunctions that multiply"}
			}
		}
	}
}

// heap is the size of the objects in memory, in bytes.
func heap() int64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64())
}

// bounded reads files with read, nil for CUE's own way, once they were found to be within bounds.
func bounded(read parse) parse {
	if read == nil {
		read = func(name string, source any, config parser.Config) (*ast.File, error) {
			return parser.ParseFile(name, source, config)
		}
	}
	return func(name string, source any, config parser.Config) (*ast.File, error) {
		if text, ok := source.([]byte); ok && !strings.HasPrefix(name, schemaRoot()) {
			if err := tooMuch(name, text); err != nil {
				return nil, err
			}
		}
		return read(name, source, config)
	}
}

// tooMuch is an error where a file is larger or deeper than a person writes one.
func tooMuch(name string, text []byte) cueerrors.Error {
	file := token.NewFile(name, -1, len(text))
	if len(text) > maxFile {
		return cueerrors.Newf(file.Pos(0, token.NoRelPos), "the file has %d bytes, at most %d are read", len(text), maxFile)
	}
	var s scanner.Scanner
	s.Init(file, text, func(token.Pos, string, []any) {}, 0)
	// chain counts for each open bracket; quoted says which is that of an interpolation, and next that the one to come is.
	chain, quoted, next := []int{0}, []bool{false}, false
	for {
		pos, tok, _ := s.Scan()
		top := len(chain) - 1
		switch {
		case tok == token.EOF:
			return nil
		case tok == token.COMMA:
			chain[top] = 0
			continue
		case tok == token.INTERPOLATION: // its bracket follows
			next = true
			continue
		case tok == token.LPAREN, tok == token.LBRACK, tok == token.LBRACE:
			if !next { // a text may have many beside each other
				chain[top]++
			}
			chain, quoted, next = append(chain, 0), append(quoted, next), false
		case tok == token.RPAREN, tok == token.RBRACK, tok == token.RBRACE:
			if top == 0 {
				continue // the parser says so
			}
			if quoted[top] {
				next = strings.HasSuffix(s.ResumeInterpolation(), "(")
			}
			chain, quoted = chain[:top], quoted[:top]
		case tok.IsLiteral() && tok != token.IDENT:
			continue
		default:
			chain[top]++
		}
		if len(chain) > maxNest {
			return cueerrors.Newf(pos, "brackets stand %d deep in each other, at most %d may", len(chain)-1, maxNest)
		}
		if top = len(chain) - 1; chain[top] > maxChain {
			return cueerrors.Newf(pos, "a value of more than %d operators, selectors and labels", maxChain)
		}
	}
}

// readable says of a file that is about to be read whole that it is one, and no larger than a person's; nil if so.
func readable(name string) *Problem {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil // whoever opens it says so
	case !info.Mode().IsRegular():
		return &Problem{File: display(name), Text: "it is no regular file"}
	case info.Size() > maxFile:
		return &Problem{File: display(name), Text: fmt.Sprintf("the file has %d bytes, at most %d are read", info.Size(), maxFile)}
	}
	return nil
}
