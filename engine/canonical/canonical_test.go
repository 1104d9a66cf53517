package canonical_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine/canonical"
)

func TestJSON(t *testing.T) {
	for _, test := range []struct {
		name string
		v    any
		want string
	}{
		// The example of RFC 8785, section 3.2.2, less its control characters.
		{"numbers", json.RawMessage(`[333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001]`), `[333333333.3333333,1e+30,4.5,0.002,1e-27]`},
		{"order", json.RawMessage(`{"b":1,"a":{"d":2,"c":3}}`), `{"a":{"c":3,"d":2},"b":1}`},
		{"no escapes for HTML", map[string]string{"a": "<&>"}, `{"a":"<&>"}`},
		{"struct", struct {
			Z int `json:"z"`
			A int `json:"a"`
		}{1, 2}, `{"a":2,"z":1}`},
	} {
		have, err := canonical.JSON(test.v)
		if err != nil || string(have) != test.want {
			t.Errorf("%s: have %s want %s, %v", test.name, have, test.want, err)
		}
	}
}

func TestDigest(t *testing.T) {
	// printf '{}' | sha256sum
	const want = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
	have, err := canonical.Digest(map[string]any{})
	if err != nil || string(have) != want || canonical.Sum([]byte("{}")) != have {
		t.Errorf("have %s want %s, %v", have, want, err)
	}
}

// Two texts that differ only in bytes that are no UTF-8 would have one digest.
func TestInvalidTextIsRefused(t *testing.T) {
	for _, v := range []any{"a\xffb", map[string]string{"\xff": ""}, []string{`\` + "\xff"}} {
		if data, err := canonical.JSON(v); err == nil || !strings.Contains(err.Error(), "UTF-8") {
			t.Errorf("%q became %s, %v", v, data, err)
		}
	}
	for _, v := range []any{`\ufffd`, "\ufffd", "ä"} {
		if _, err := canonical.JSON(v); err != nil {
			t.Errorf("%q: %v", v, err)
		}
	}
}

// A number that a double cannot hold would have the digest of its neighbour.
func TestLargeNumbersAreRefused(t *testing.T) {
	text := func(s string) json.RawMessage { return json.RawMessage(s) }
	for _, v := range []any{
		int64(1)<<53 + 1, uint64(1) << 60, map[string]any{"a": []int64{-1<<53 - 1}},
		text("9007199254740993.0"), text("1000000000000000000001e0"), text("1e400"), text("1e99999999999999999999"),
	} {
		if data, err := canonical.JSON(v); err == nil {
			t.Errorf("%v became %s", v, data)
		}
	}
	for _, v := range []any{
		int64(1) << 53, 0.1, -5, 1e300, 5e-324, math.MaxFloat64, int64(1e16),
		text("10000000000000000.0"), text("0.10"), text("-0.0e5"), text("100e-2"), text("0e999999999999999999999"),
	} {
		if _, err := canonical.JSON(v); err != nil {
			t.Errorf("%v: %v", v, err)
		}
	}
}

func FuzzJSON(f *testing.F) {
	f.Add(`{"a":[1,2.5,"x",null,true]}`)
	f.Fuzz(func(t *testing.T, text string) {
		once, err := canonical.JSON(json.RawMessage(text))
		if err != nil {
			return
		}
		twice, err := canonical.JSON(json.RawMessage(once))
		if err != nil || string(once) != string(twice) {
			t.Errorf("%q: %s then %s, %v", text, once, twice, err)
		}
	})
}
