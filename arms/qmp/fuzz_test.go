package qmp

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
)

// FuzzServer has a server say anything at all. The client neither panics nor
// hangs nor leaves a goroutine, and a command that succeeds was answered.
func FuzzServer(f *testing.F) {
	for _, s := range []string{
		"", hello, hello + `{"return": {}, "id": "1"}` + "\n",
		hello + `{"return": {}, "id": "1"}` + "\n" + `{"return": "x", "id": "2"}` + "\n",
		hello + `{"return": {}, "id": "1"}` + "\n" + `{"event": "STOP"}` + "\n" + `{"error": {"class": "a", "desc": "b"}, "id": "2"}` + "\n",
		hello + `{"return": null, "id": "1"}` + "\n", hello + "{", hello + "\x00\n", `{"QMP": {"version": null}}` + "\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		ours, theirs := net.Pipe()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			go io.Copy(io.Discard, theirs)
			theirs.Write(said)
			theirs.Close()
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		m, err := Open(ctx, ours, Options{Line: 4 << 10})
		if err == nil {
			if _, err := m.Events(ctx); err == nil {
				err = m.Execute(ctx, "query-status", nil, nil)
				var refused *CommandError
				if err != nil && !errors.As(err, &refused) && !errors.Is(err, ErrProtocol) && !errors.Is(err, engine.ErrDead) {
					t.Errorf("an error of no kind: %v", err)
				}
			}
			if err := m.Disconnect(); err != nil {
				t.Error(err)
			}
		} else if errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("hung: %v", err)
		}
		<-ended
	})
}
