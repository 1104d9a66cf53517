package gate

import (
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

const loHint = "a restore can return 0 and leave lo down: whoever owns the network namespace must bring its links and addresses back"

// JudgeNetworkUp requires a working loopback interface.
func JudgeNetworkUp(r engine.Reading[bench.Network]) (j engine.Judgement) {
	have, ok := known(&j, "network", r)
	if !ok {
		return j
	}
	up, found := false, false
	for _, l := range have.Links {
		if l.Name == "lo" {
			found, up = true, l.Up
		}
	}
	switch {
	case !found:
		f := j.Add(engine.Fail, "lo", "does not exist")
		f.Want, f.Have, f.Hint = "UP", "absent", loHint
	case !up:
		f := j.Add(engine.Fail, "lo", "is DOWN")
		f.Want, f.Have, f.Hint = "UP", "DOWN", loHint
	}
	address := false
	for _, a := range have.Addresses {
		w := strings.Fields(a) // as observe.NetworkAt writes it: link, address, then the rest
		address = address || len(w) >= 2 && w[0] == "lo" && w[1] == "127.0.0.1/8"
	}
	if !address {
		f := j.Add(engine.Fail, "lo", "has no address")
		f.Want, f.Have, f.Hint = "127.0.0.1/8", strings.Join(have.Addresses, ", "), loHint
	}
	return j
}

// JudgeNetwork compares links, addresses, routes and rules with the checkpoint's.
func JudgeNetwork(want bench.Network, r engine.Reading[bench.Network]) (j engine.Judgement) {
	have, ok := known(&j, "network", r)
	if !ok {
		return j
	}
	if len(want.Links) == 0 {
		j.Add(engine.VerdictUnknown, "network", "the checkpoint holds no links")
		return j
	}
	up := map[string]bool{} // of the links that are there
	for _, l := range have.Links {
		up[l.Name] = up[l.Name] || l.Up
	}
	for _, l := range want.Links { // in the words of ip(8), before all that follows from it
		if now, there := up[l.Name]; l.Up && there && !now {
			f := j.Add(engine.Fail, l.Name, "is DOWN")
			f.Want, f.Have, f.Hint = "UP", "DOWN", loHint
		}
	}
	self := func(s string) string { return s }
	equalSets(&j, "link", want.Links, have.Links, func(l bench.Link) string { return l.Name }, loHint)
	equalSets(&j, "address", want.Addresses, have.Addresses, self, loHint)
	equalSets(&j, "route", want.Routes, have.Routes, self, loHint)
	equalSets(&j, "rule", want.Rules, have.Rules, self, loHint)
	fact(&j, "network", map[string]int{"links": len(have.Links), "addresses": len(have.Addresses), "routes": len(have.Routes), "rules": len(have.Rules)}, r.Source(), r.View())
	return j
}
