package compile

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// many is a record with so many steps, each of which is text.
func many(n int, text string) []byte {
	var b strings.Builder
	b.WriteString(`{"apiVersion":"drumsbench/v1","steps":[`)
	for i := range n {
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString(strings.ReplaceAll(text, "%", fmt.Sprint(i)))
	}
	b.WriteString(`]}`)
	return []byte(b.String())
}

// settings is a record with so many settings, each of which is a number.
func settings(n int) []byte {
	var b strings.Builder
	b.WriteString(`{"apiVersion":"drumsbench/v1","settings":{"a":""`)
	for i := range n {
		fmt.Fprintf(&b, `,"k%d":1`, i)
	}
	b.WriteString(`}}`)
	return []byte(b.String())
}

// A large document with a mistake in each value is refused at its first ones. The time is CUE's for a few
// hundred of them and does not grow with the document: all of the mistakes of this one take it a minute.
func TestFlood(t *testing.T) {
	const good = `{"step":"a%","kind":"gate","verdict":"pass","nanoseconds":"12"}`
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"every value is wrong":  {many(8_000, `{"step":1,"kind":2,"verdict":"no"}`), "more than 499 other mistakes"},
		"no field is known":     {many(5_000, `{"a%":1,"b%":2}`), "more than 499 other mistakes"},
		"a map of wrong values": {settings(10_000), "more than 499 other mistakes"},
		"the last of the large": {[]byte(strings.Replace(string(many(600, good)), `"a599","kind":"gate"`, `"a599","kind":7`, 1)), "steps[599].kind: have 7"},
		"fields are missing":    {many(600, good), "missing field verdict"},
	} {
		err := Validate("Record", c.data)
		var problems Problems
		if err == nil || !errors.As(err, &problems) || len(problems) > 100 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %d bytes, %d problems: %.400v", name, len(c.data), len(problems), err)
		}
	}
}
