package soaktest

import (
	"testing"
)

func TestJudge(t *testing.T) {
	bounds := map[string]Bound{"own.mounts": {}, "engine.descriptors": {Rise: 2}, "run.disk": {PerReset: 10}, "host.mounts": {Floor: true, PerReset: 0.25}}
	made := func(n int, f func(reset int64, v map[string]int64)) (samples []Sample) {
		for i := range int64(n) {
			v := map[string]int64{"own.mounts": 7, "engine.descriptors": 20 + i%2, "run.disk": 1000 + 9*i, "host.mounts": 100 + (i*37)%50}
			if f != nil {
				f(i, v)
			}
			samples = append(samples, Sample{Reset: i + 1, Values: v})
		}
		return samples
	}
	for name, c := range map[string]struct {
		plant func(int64, map[string]int64)
		grown string
	}{
		"nothing":           {nil, ""},
		"one mount a reset": {func(i int64, v map[string]int64) { v["own.mounts"] += i }, "own.mounts"},
		"one in twenty":     {func(i int64, v map[string]int64) { v["own.mounts"] += i / 20 }, "own.mounts"},
		"only at the start": {func(i int64, v map[string]int64) { v["own.mounts"] += min(i, 5) }, ""},
		"a sawtooth":        {func(i int64, v map[string]int64) { v["own.mounts"] += i % 3 }, ""},
		"descriptors":       {func(i int64, v map[string]int64) { v["engine.descriptors"] += i / 8 }, "engine.descriptors"},
		"faster than said":  {func(i int64, v map[string]int64) { v["run.disk"] += 2 * i }, "run.disk"},
		"host":              {func(i int64, v map[string]int64) { v["host.mounts"] += i }, "host.mounts"},
		"a busy host":       {func(i int64, v map[string]int64) { v["host.mounts"] += 1000 * (i % 2) }, ""},
	} {
		all, err := Judge(made(100, c.plant), bounds)
		if err != nil || Grown(all) != c.grown {
			t.Errorf("%s: %q grew, want %q; %v", name, Grown(all), c.grown, err)
		}
	}
	if _, err := Judge(made(Needed-1, nil), bounds); err == nil {
		t.Error("too few samples are judged")
	}
	if _, err := Judge(made(20, func(i int64, v map[string]int64) {
		if i == 10 {
			delete(v, "own.mounts")
		}
	}), bounds); err == nil {
		t.Error("a sample without a value is judged")
	}
	if _, err := Judge(made(20, func(_ int64, v map[string]int64) { v["else"] = 1 }), bounds); err == nil {
		t.Error("a value without a bound is judged")
	}
}
