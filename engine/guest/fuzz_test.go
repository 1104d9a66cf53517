package guest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
)

// A server may answer anything to any call. The call ends, with an error of a kind
// that a step knows, or with an answer within the limits.
func FuzzServer(f *testing.F) {
	for _, seed := range []string{
		jsonReply(200, `{"version":"x"}`), jsonReply(500, `{"status":"error","message":"no"}`), jsonReply(200, `{"status":"success","returncode":0,"output":"a"}`),
		reply(200, "image/png", "\x89PNG"), reply(404, "application/json", `{"error":"none"}`), reply(200, "text/plain", "abc"),
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"HTTP/1.1 301 x\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 100 x\r\n\r\n", "HTTP/1.1 200 x\r\nContent-Length: -1\r\n\r\n", "\x00", "",
		jsonReply(200, `{"resolved":"/bin/true","before":[{"path":"/bin/true","kind":"file"}],"after":[]}`),
		jsonReply(200, `{"state":{"entries":[],"exclude":[]},"processes":[{"pid":1}],"locks":[{"start":"1e3"}]}`),
	} {
		for call := range uint8(6) {
			f.Add(call, []byte(seed))
		}
	}
	limits := Limits{Header: 1 << 10, Body: 1 << 12, Picture: 1 << 12, Exchange: time.Minute, Close: time.Minute} // nothing here waits: a slow machine is no finding
	f.Fuzz(func(t *testing.T, call uint8, said []byte) {
		ended := make(chan struct{})
		c := New(func(context.Context, int) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() {
				defer close(ended)
				defer theirs.Close()
				q, err := http.ReadRequest(bufio.NewReader(theirs))
				if err != nil {
					return
				}
				io.Copy(io.Discard, q.Body)
				theirs.Write(said)
			}()
			return ours, nil
		}, 5000, limits)
		var err error
		ctx := t.Context()
		size := 0
		switch call % 6 {
		case 0:
			_, err = c.Probe(ctx)
		case 1:
			var png []byte
			png, err = c.Screenshot(ctx)
			size = len(png)
		case 2:
			var r Result
			r, err = c.Execute(ctx, []string{"true"}, time.Second)
			size = len(r.Stdout) + len(r.Stderr)
		case 3:
			var data []byte
			data, err = c.ReadFile(ctx, "/a", 100)
			if len(data) > 100 {
				t.Errorf("a file of %d bytes, at most 100 were asked for", len(data))
			}
		case 4:
			_, err = c.Check(ctx, Check{Exec: []string{"true"}, Timeout: time.Second})
		case 5:
			_, err = c.Observe(ctx, []string{proto.AspectState, proto.AspectLocks, proto.AspectProcesses}, nil)
		}
		<-ended
		if size > 1<<12 {
			t.Errorf("%d bytes", size)
		}
		if err == nil {
			return
		}
		for _, kind := range []error{ErrProtocol, ErrTooLarge, ErrExecute, ErrFailed, ErrNoScreen, engine.ErrDead, engine.ErrUnknown, engine.ErrRefused, fs.ErrNotExist} {
			if errors.Is(err, kind) {
				return
			}
		}
		t.Errorf("an error of no kind: %v", err)
	})
}
