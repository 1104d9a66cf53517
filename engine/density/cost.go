package density

import (
	"fmt"
	"math/big"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// places of money that are printed.
const places = 6

// Receipts are the bills that a manifest's prices name, by price.
func Receipts(p *bench.Prices) map[string]bench.PinnedFile {
	out := map[string]bench.PinnedFile{}
	if p == nil {
		return out
	}
	for name, r := range map[string]*bench.PinnedFile{"owned": p.Owned.Receipt, "onDemand": p.OnDemand.Receipt, "second": p.Second.Receipt} {
		if r != nil {
			out[name] = *r
		}
	}
	return out
}

// price of an hour in USD.
type price struct {
	name, date, source string
	hourly, minimum    *big.Rat
}

// Prices of an hour, exactly:
//
//	owned      purchase / hours + watts / 1000 * kwh
//	onDemand   hourly, at least minimum hours
//	second     hourly * usd, at least minimum hours
func pricesOf(p bench.Prices) ([]price, error) {
	var bad error
	rat := func(d bench.Decimal) *big.Rat {
		r, ok := new(big.Rat).SetString(string(d))
		if !ok {
			bad = &engine.Error{Op: "read price", Err: fmt.Errorf("%w: %q is no decimal number", engine.ErrUsage, d)}
			return new(big.Rat)
		}
		return r
	}
	mul, quo, add := func(a, b *big.Rat) *big.Rat { return new(big.Rat).Mul(a, b) }, func(a, b *big.Rat) *big.Rat { return new(big.Rat).Quo(a, b) }, func(a, b *big.Rat) *big.Rat { return new(big.Rat).Add(a, b) }
	if p.Owned.Hours <= 0 {
		return nil, &engine.Error{Op: "read price", Err: fmt.Errorf("%w: owned.hours is %d", engine.ErrUsage, p.Owned.Hours)}
	}
	owned := add(quo(rat(p.Owned.Purchase), new(big.Rat).SetInt64(p.Owned.Hours)), mul(quo(rat(p.Owned.Watts), big.NewRat(1000, 1)), rat(p.Owned.Kwh)))
	list := []price{
		{"owned", string(p.Owned.Date), p.Owned.Source, owned, new(big.Rat)},
		{"onDemand", string(p.OnDemand.Date), p.OnDemand.Source, rat(p.OnDemand.Hourly), rat(bench.Decimal(p.OnDemand.Minimum))},
		{"second", string(p.Second.Date), fmt.Sprintf("%s; %s %s at %s USD, %s of %s", p.Second.Source, p.Second.Hourly, p.Second.Currency, p.Second.Usd, p.Second.RateSource, p.Second.RateDate),
			mul(rat(p.Second.Hourly), rat(p.Second.Usd)), rat(bench.Decimal(p.Second.Minimum))},
	}
	return list, bad
}

// costs of a valid rollout in the sustained windows.
func (g *group) costs(d *bench.Density) error {
	p := g.first.Manifest.Experiment.Prices
	for _, one := range g.runs {
		if one.Manifest.Experiment.Prices != nil {
			p = one.Manifest.Experiment.Prices
		}
	}
	if p == nil {
		d.NoCosts = "the manifest names no prices"
		return nil
	}
	if len(d.Windows) == 0 || d.PerHour.Value == "" {
		d.NoCosts = d.PerHour.Reason
		return nil
	}
	prices, err := pricesOf(*p)
	if err != nil {
		return err
	}
	var wall, valid, attempts int64
	for _, w := range d.Windows {
		wall += number(w.Wall)
		valid += w.Valid
		attempts += w.Attempts
	}
	inference := new(big.Rat)
	if p.Inference.Counted == "in" {
		r, ok := new(big.Rat).SetString(string(p.Inference.Rollout))
		if !ok {
			return &engine.Error{Op: "read price", Err: fmt.Errorf("%w: inference is counted and has no price of a rollout", engine.ErrUsage)}
		}
		inference.Mul(r, new(big.Rat).SetInt64(attempts))
	}
	for _, one := range prices {
		hours := big.NewRat(wall, 3600e9)
		if hours.Cmp(one.minimum) < 0 {
			hours.Set(one.minimum)
		}
		paid := new(big.Rat).Mul(one.hourly, hours)
		paid.Add(paid, inference)
		c := bench.Cost{Price: one.name, Date: bench.Date(one.date), Source: one.source, Hourly: decimal(one.hourly, places), Paid: decimal(paid, places), Hours: decimal(hours, places),
			Valid: valid, Inference: p.Inference.Counted, Label: g.label(one.name)}
		if valid == 0 {
			c.Reason = "no rollout was valid"
		} else {
			c.Usd = decimal(new(big.Rat).Quo(paid, new(big.Rat).SetInt64(valid)), places)
		}
		d.Costs = append(d.Costs, c)
	}
	return nil
}

// label of a cost: an estimate, unless every run of the windows found the bill.
func (g *group) label(name string) string {
	digest := ""
	for _, p := range g.runs {
		if p.Kind != "sustain" {
			continue
		}
		found := ""
		for _, f := range p.Record.Facts {
			if f.Name == ReceiptFact+name && f.Known {
				found = f.Value
			}
		}
		if found == "" || digest != "" && digest != found {
			return "estimate"
		}
		digest = found
	}
	if digest == "" {
		return "estimate"
	}
	return "receipt sha256 " + digest
}
