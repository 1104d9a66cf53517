package record

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/sign"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// ReviewsFile holds what people decided about steps that waited for them, in a
// chain that goes on where events.jsonl ended: the run's own chain stays as the
// run left it. There is none before the first decision.
const ReviewsFile = "reviews.jsonl"

// Waiting is a step that waits, or waited, for a person.
type Waiting struct {
	Step     string
	Receipt  bench.SHA256
	Findings []bench.Finding
	Evidence []bench.Evidence
	// Review is nil while nobody has decided.
	Review *bench.Review
}

// ReadReviews reads the decisions on a run as they stand there; it does not check
// that they are a chain. A torn last line is not among them.
func ReadReviews(dir string) (list []bench.Review, err error) {
	_, _, err = eachLine(filepath.Join(dir, ReviewsFile), func(number int, line []byte) error {
		var r bench.Review
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("%s:%d: %w", ReviewsFile, number, err)
		}
		list = append(list, r)
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, &engine.Error{Op: "read reviews", Err: err}
	}
	return list, nil
}

// ReadWaiting lists the steps of a run that waited for a person, in the order of the chain.
func ReadWaiting(dir string) (list []Waiting, err error) {
	_, _, err = eachLine(filepath.Join(dir, EventsFile), func(number int, line []byte) error {
		var r bench.Receipt
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("%s:%d: %w", EventsFile, number, err)
		}
		if r.Event == "step" && r.Verdict == engine.Review {
			list = append(list, Waiting{Step: r.Step, Receipt: canonical.Sum(line), Findings: r.Findings, Evidence: r.Evidence})
		}
		return nil
	})
	if err != nil {
		return nil, &engine.Error{Op: "read events", Err: err}
	}
	reviews, err := ReadReviews(dir)
	if err != nil {
		return nil, err
	}
	for _, r := range reviews {
		for i := range list {
			if list[i].Step == r.Step && list[i].Review == nil {
				list[i].Review = &r
			}
		}
	}
	return list, nil
}

// Decide appends a person's decision on a step to the run's reviews, then makes
// the record anew; with a key it is signed. The directory must be held, sound and of a run that has ended
// ([Verify]); a step that does not wait, or that was decided, is ErrRefused with
// nothing changed. A decision is final.
func Decide(dir, step, decision, by, reason string, key *sign.Key) (bench.Record, error) {
	const op = "decide review"
	waiting, err := ReadWaiting(dir)
	if err != nil {
		return bench.Record{}, err
	}
	var about *Waiting
	for i := range waiting {
		if waiting[i].Step == step {
			about = &waiting[i]
		}
	}
	switch {
	case about == nil:
		return bench.Record{}, &engine.Error{Op: op, Step: step, Err: fmt.Errorf("%w: the step does not wait for a review", engine.ErrRefused)}
	case about.Review != nil:
		return bench.Record{}, &engine.Error{Op: op, Step: step, Err: fmt.Errorf("%w: %s decided %s at %s", engine.ErrRefused, about.Review.By, about.Review.Decision, about.Review.Time), Hint: "a decision is final; run again"}
	}
	seq, prev, err := lastReview(dir)
	if err != nil {
		return bench.Record{}, err
	}
	line := bench.Review{Seq: seq, Prev: prev, Time: bench.Time(time.Now().UTC().Format(time.RFC3339Nano)), Step: step, Receipt: about.Receipt,
		Decision: decision, By: strings.TrimSpace(by), Reason: strings.TrimSpace(reason), Evidence: about.Evidence}
	if line.Evidence == nil {
		line.Evidence = []bench.Evidence{}
	}
	if key != nil {
		if err := signReview(&line, *key); err != nil {
			return bench.Record{}, err
		}
	}
	data, err := json.Marshal(line)
	if err == nil {
		err = compile.Validate("Review", data)
	}
	if err != nil {
		return bench.Record{}, &engine.Error{Op: op, Step: step, Err: err}
	}
	file, err := openLines(filepath.Join(dir, ReviewsFile), os.O_CREATE)
	if err == nil {
		_, err = file.append(line)
		err = errors.Join(err, file.close())
	}
	if err != nil {
		return bench.Record{}, &engine.Error{Op: op, Step: step, Err: err}
	}
	return Renew(dir)
}

// Renew makes the record of a held directory anew where reviews came after it:
// what the header of the record says stays. A torn last review is cut off.
func Renew(dir string) (bench.Record, error) {
	_, _, err := lastReview(dir)
	var old []byte
	if err == nil {
		old, err = read(dir, RecordFile)
	}
	var r bench.Record
	if err == nil && old == nil {
		err = fs.ErrNotExist
	}
	if err == nil {
		err = json.Unmarshal(old, &r)
	}
	if err != nil {
		return r, &engine.Error{Op: "renew record", Err: err}
	}
	again, err := Build(dir, headerOf(r))
	if err != nil {
		return r, err
	}
	again.Digests["ledger"] = r.Digests["ledger"] // lines behind it are a sweep's
	d := Dir{Path: dir}
	_, err = d.WriteRecord(again)
	return again, err
}

// lastReview is the number that the next line has and the digest that it names.
// A torn last line is cut off first: nobody was told that it counts.
func lastReview(dir string) (seq int64, prev bench.SHA256, err error) {
	links, _, err := readLinks(dir)
	if err == nil && len(links) == 0 {
		err = errors.New("the run has no line")
	}
	if err != nil {
		return 0, "", &engine.Error{Op: "read events", Err: err}
	}
	prev = links[len(links)-1].digest
	path := filepath.Join(dir, ReviewsFile)
	size, torn, err := eachLine(path, func(_ int, line []byte) error {
		seq, prev = seq+1, canonical.Sum(line)
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return seq, prev, nil
	}
	if err == nil {
		err = own(path)
	}
	if err == nil && torn > 0 {
		err = os.Truncate(path, size)
	}
	if err != nil {
		return 0, "", &engine.Error{Op: "read reviews", Err: err}
	}
	return seq, prev, nil
}

// decided puts people's decisions into the steps that waited for them, and says
// what the last line's digest is; empty without one. Lines behind the one with the
// digest until do not count, none does where it is empty.
func decided(dir string, steps []step, until *bench.SHA256) (last bench.SHA256, err error) {
	if until != nil && *until == "" {
		return "", nil
	}
	_, _, err = eachLine(filepath.Join(dir, ReviewsFile), func(number int, line []byte) error {
		var r bench.Review
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("%s:%d: %w", ReviewsFile, number, err)
		}
		if until != nil && last == *until {
			return nil
		}
		last = canonical.Sum(line)
		for i := range steps {
			s := &steps[i]
			if s.plan.Id != r.Step {
				continue
			}
			if s.receipt.Verdict != engine.Review || s.review != nil {
				return fmt.Errorf("%s:%d: step %s does not wait for a review", ReviewsFile, number, r.Step)
			}
			s.review = &r
			return nil
		}
		return fmt.Errorf("%s:%d: the plan has no step %s", ReviewsFile, number, r.Step)
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", &engine.Error{Op: "build record", Err: err}
	}
	for i := range steps {
		s := &steps[i]
		switch {
		case s.review == nil:
		case s.review.Decision == "pass":
			s.receipt.Verdict = engine.Pass
		default:
			s.receipt.Verdict = engine.Fail
		}
		if s.review != nil && s.receipt.Verdict == engine.Fail {
			s.receipt.Findings = append(s.receipt.Findings[:len(s.receipt.Findings):len(s.receipt.Findings)],
				bench.Finding{Verdict: engine.Fail, Subject: "review", Text: s.review.By + ": " + s.review.Reason})
		}
	}
	return last, nil
}

// reviews checks the decisions: their chain from the run's last line on, the
// schema, what each is about, and that the record knows of them. Lines behind
// those that the record covers are what a crash between the two leaves.
func (v *verifier) reviews() error {
	var record bench.SHA256
	if v.report.Record != nil {
		record = v.report.Record.Digests["reviews"]
	}
	data, err := v.file(ReviewsFile)
	if err != nil {
		return err
	}
	if data == nil {
		if record != "" {
			v.damage(Problem{Missing, ReviewsFile, 0, RecordFile + " names it"})
		}
		return nil
	}
	if !v.ended {
		v.damage(Problem{Wrong, ReviewsFile, 0, "the run has not ended, so nobody could review it"})
		return nil
	}
	waits, err := ReadWaiting(v.dir)
	if err != nil {
		return nil //nolint:nilerr // the chain's own check has named it
	}
	receipts := map[string]bench.SHA256{}
	for _, w := range waits {
		receipts[w.Step] = w.Receipt
	}
	covered := record == ""
	behind := 0
	next, prev := int64(0), v.links[len(v.links)-1].digest
	_, torn, err := eachLine(filepath.Join(v.dir, ReviewsFile), func(number int, line []byte) error {
		var r bench.Review
		digest := canonical.Sum(line)
		switch {
		case !exactly(line, &r):
			v.damage(Problem{Edited, ReviewsFile, number, "it is no review"})
		case r.Prev != prev:
			v.damage(Problem{Edited, ReviewsFile, number, "it does not name the line before it"})
		case r.Seq != next:
			v.damage(Problem{Reordered, ReviewsFile, number, fmt.Sprintf("it has number %d; number %d belongs here", r.Seq, next)})
		case receipts[r.Step] == "":
			v.damage(Problem{Wrong, ReviewsFile, number, fmt.Sprintf("step %s does not wait for a review, or was decided before", r.Step)})
		case receipts[r.Step] != r.Receipt:
			v.damage(Problem{Wrong, ReviewsFile, number, "it is about another receipt"})
		case r.Signature != nil && !signed(r):
			v.damage(Problem{Edited, ReviewsFile, number, "its signature does not fit"})
		default:
			found, err := illegal("Review", line)
			if err != nil {
				return err
			}
			if found != "" {
				v.judged = append(v.judged, Problem{Illegal, ReviewsFile, number, found})
			}
		}
		delete(receipts, r.Step)
		next, prev = next+1, digest
		if covered {
			behind++
		}
		covered = covered || digest == record
		return nil
	})
	if err != nil {
		return &engine.Error{Op: "read reviews", Err: err}
	}
	if torn > 0 {
		v.crash(Problem{Torn, ReviewsFile, torn, cutOff})
	}
	switch {
	case !covered:
		v.damage(Problem{Edited, ReviewsFile, int(next), "no line of it is the one that " + RecordFile + " names"})
	case behind > 0:
		v.uncovered = true
		v.crash(Problem{Cut, ReviewsFile, int(next), uncovered})
	}
	return nil
}

// reviewType is what a signature of a review is of.
const reviewType = "application/vnd.drumsbench.review+json"

// signReview signs a line as it is.
func signReview(r *bench.Review, key sign.Key) error {
	r.Signature = nil
	e, err := key.Value(reviewType, *r)
	if err != nil {
		return err
	}
	p := key.Public()
	r.Signature = &bench.Signature{Key: p.ID(), Public: base64.StdEncoding.EncodeToString(p.DER()), Sig: e.Signatures[0].Sig}
	return nil
}

// signed says whether a review's signature is that of the key which it names, and of
// the line without it. Whose key that is, a reader of the run has to know: see [Signer].
func signed(r bench.Review) bool {
	p, err := Signer(r)
	if err != nil {
		return false
	}
	s := *r.Signature
	r.Signature = nil
	data, err := canonical.JSON(r)
	if err != nil {
		return false
	}
	_, _, err = sign.Check(reviewType, dsse.Envelope{PayloadType: reviewType, Payload: base64.StdEncoding.EncodeToString(data),
		Signatures: []dsse.Signature{{KeyID: string(s.Key), Sig: s.Sig}}}, p)
	return err == nil
}

// Signer is the key that a review says it was signed with. [Verify] has found any
// review whose signature is not of that key.
func Signer(r bench.Review) (sign.Public, error) {
	if r.Signature == nil {
		return sign.Public{}, errors.New("it is not signed")
	}
	der, err := base64.StdEncoding.DecodeString(r.Signature.Public)
	if err != nil {
		return sign.Public{}, err
	}
	p, err := sign.ParsePublic(der)
	if err == nil && p.ID() != r.Signature.Key {
		err = errors.New("the key is not the one that is named")
	}
	return p, err
}

// uncovered is what is said of decisions that a crash kept out of the record.
const uncovered = "the record does not know of it: whoever wrote it was stopped before the record was made anew"
