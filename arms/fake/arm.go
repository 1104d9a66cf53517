// Package fake is an arm in memory. It exists so that everything above the arms
// (steps, gates, executor, records, the conformance suite itself) is tested
// without privilege, without tools and in milliseconds, and so that each fault
// that a real arm can have is planted at will.
//
// Always holds: without faults it keeps the whole contract of engine.Arm, and
// arms/armtest passes on it as on every real arm; it writes its ledger like a
// real arm (a directory and a file in ws.Work for each slot, a directory for the
// image); its checkpoints are real folders, sealed by engine/checkpoint, and serve
// another arm and another run; the guest server in a slot speaks the protocol of
// engine/guest over connections in memory; it measures time by package time
// alone, so that it runs in a testing/synctest bubble.
//
// A slot's guest runs no program of the host. It knows, as built in and with the
// meaning of their Unix namesakes: true, false, sleep N, echo WORDS, cat FILES,
// touch FILES, write FILE TEXT, append FILE TEXT, test -e|-f|-d|-s FILE, mv, cp,
// rm [-rf], mkdir [-p], head -c N /dev/zero, exit N, signal N, kill-server, and
// sh -c with one of them as text; beside those remember WORDS and recall, which
// keep a line in the memory of the first process and print all of them, and
// canary PATH VERB TOKENS, which stands for cmd/canary. Each is a file in /usr/bin, found through the
// PATH /usr/local/bin:/usr/bin; a file with another content is a text for sh, in
// which $0 and "$@" are the file and its arguments.
//
// # Faults
//
// arms.fake.faults of a manifest lists knobs. Each plants one fault in every
// slot that it concerns; "KNOB@cold" only in provisioned slots, "KNOB@restored"
// only in restored ones, "KNOB@3" only in the third slot that the arm makes,
// provisioned or restored. The knobs of the image and of the run take no "@".
//
//	image
//	mount-refused             the image's digest is not the pinned one: Mount refuses
//	image-changed             the image changes under the run: Root.Verify refuses
//	image-unreadable          Root.Verify cannot read the image
//
//	provisioned slots
//	provision-error           Provision fails after it has begun; it takes back what it made
//	provision-hang            Provision waits until its context is done
//	provision-dead            Provision succeeds, and the guest is dead (case 23)
//
//	any slot
//	slow                      each verb takes a little while, in parts, and heeds its context
//	limits-ignored            no bound on memory is in force (case 27)
//	task-outside              a task is in another group (case 11)
//	foreign-mount             /dev/tty is a bind of the host's (case 6)
//	foreign-sys               /sys brings configfs, debugfs and bpf along (case 7)
//	network-down              lo is down and has no address (case 4)
//	outside-socket            a socket is connected to the outside (case 13)
//	tool-config               a file of the host changes the tools (case 29)
//	slow-start                the guest server listens after SlowStart only
//	never-ready               the guest server never says that it is ready
//	service-dead              the first service has ended; nothing happens where there is none
//	server-wrong-digest       another program answers than the pinned one
//	checker-missing           the program test is missing: a shell's 127
//	checker-hang              the program test does not end before its time is up
//	checker-signal            the program test ends by a signal
//	checker-stub              the program test says that a module is missing, and exits with 1
//	checker-exception         the program test ends in an exception, and exits with 1
//	checker-kills-server      the guest server ends while the program test runs
//	checker-other             the program test is another file, which does the same
//	checker-swapped           the program mv puts another program in the place of test
//	checker-swapped-unseen    as checker-swapped, and the guest server says that test is as it was
//	closure-unknown           the guest server cannot read what a checker stands on
//	act-error                 the program mv fails
//	act-kills-server          the program mv takes the guest server with it
//	canary-changed            the program mv changes each file that was uploaded
//	no-picture                the guest server has no picture of the screen
//	other-system              another release of the system answers than in other slots
//	unknown-system            the guest cannot read its package database
//	release-error             Place.Release leaves the slot's folder behind
//	hostname-stuck            the host name stays whatever is written to it
//	draw-repeats              the guest server draws the same number each time
//	remember-ignored          the program remember keeps nothing
//	canary-shared             what one such slot holds as a canary all such slots see
//	pipe-shared               a process holds one end of a pipe that all such slots hold
//	device-shared             a process has /dev/urandom open
//	limits-unknown            limits cannot be observed
//	unknown-objects, unknown-mounts, unknown-network, unknown-locks, unknown-processes,
//	unknown-enclosure, unknown-state, unknown-tool-config, unknown-memory
//	                          the aspect cannot be observed
//
//	the slot that is dumped
//	dump-error                Dump fails half-way; the slot runs on
//	dump-refused              Dump refuses with a finding and a remedy; the slot runs on (case 3)
//	dump-hang                 Dump waits until its context is done
//	dump-no-network           the checkpoint says that the network is not in it
//	dump-foreign              the checkpoint says that another host made it
//	checkpoint-damaged        a byte is appended to a sealed file (case 12)
//
//	restored slots
//	restore-error             Restore fails after it has begun; it takes back what it made
//	restore-hang              Restore waits until its context is done
//	restore-ignores-deadline  Restore returns Overrun after its context is done (case 30)
//	resume-error              Resume fails; the slot stays stopped
//	lock-lost                 the lock on the mapped file is lost (case 1)
//	lock-extra                a lock is held that was not
//	process-lost              the last process is missing
//	process-argv              the first process has other arguments
//	state-dirty               a file of an earlier rollout is there
//	token-lost                the live token is another
//	counter-stopped           the live counter stands still
//	memory-lost               what was remembered is forgotten
//	checkpoint-written        the program remember writes to the checkpoint that the slot came from
//	canary-stale              each uploaded file changes when the tree goes on
//
//	the run
//	lacks-locks               the arm declares that it has no locks to judge
//	lacks-cleanup             the arm declares that it leaves nothing that could be looked for
//	leaves-process            a process of the run's is left on the host
//	host-changed              a setting of the host is another one after the run
//	host-busy                 somebody else mounts something meanwhile
//	unknown-survey            the host cannot be looked at before the run
//	unknown-cleanup           the host cannot be looked at after the run
package fake

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Kind is the arm's name in manifests and records.
const Kind = "fake"

// Version of what a checkpoint holds; checkpoints of another are refused.
const Version = "1"

// factVersion is the fact that a checkpoint is of.
const factVersion = "fake-version"

// The times of the faults that take time.
const (
	SlowStart = 200 * time.Millisecond
	// Overrun is how long restore-ignores-deadline goes on: longer than an executor's grace, and bounded.
	Overrun = 10 * time.Second
	// slowPart is how long each part of a verb takes under "slow".
	slowPart = 5 * time.Millisecond
)

// Arm implements engine.Arm. One Arm serves one run. Safe for concurrent use.
type Arm struct {
	faults faults

	mu     sync.Mutex
	slots  int // made so far, provisioned or restored
	images int
	// held are the canaries that slots with the fault canary-shared see of each other.
	held map[string]bool
	host map[string]hostThing
}

// New returns the arm with the manifest's settings. A fault that is not in the
// list above is ErrUsage, with the list.
func New(settings bench.FakeSettings) (*Arm, error) {
	f, err := parseFaults(settings.Faults)
	if err != nil {
		return nil, err
	}
	return &Arm{faults: f, host: map[string]hostThing{"sysctl net.ipv4.ip_forward": {"0", true}}}, nil
}

// Describe implements engine.Arm.
func (a *Arm) Describe() engine.Description {
	d := engine.Description{
		Kind:     Kind,
		Settings: map[string]string{"faults": strings.Join(a.faults.names(), ",")},
		Differences: []bench.Difference{
			{Name: "in-memory", Text: "nothing runs: a slot is a model in the engine's memory, and none of its times mean anything"},
			{Name: "image", Text: "the image is compared with its pin and never read: every slot starts from the same few built-in files"},
		},
		NotApplicable: map[string]string{},
	}
	if a.faults.run("lacks-locks") {
		d.NotApplicable["locks"] = "the fake arm was told to have no locks"
	}
	if a.faults.run("lacks-cleanup") {
		d.NotApplicable["cleanup"] = "the fake arm was told that nothing of it can be looked for"
	}
	return d
}

// Facts implements engine.Arm.
func (a *Arm) Facts(context.Context) []bench.Fact {
	return []bench.Fact{
		{Name: factVersion, Known: true, Value: Version, Source: "engine", View: engine.ViewHost},
		engine.NativeAccelerator(),
	}
}

// root is the mounted image.
type root struct {
	arm  *Arm
	ws   *engine.Workspace
	path string
	pin  bench.SHA256
	dir  *ownedPath

	mu     sync.Mutex
	places map[string]bool // names of the places that are on the image
}

// CachePaths implements engine.Cached: the image is all that there is.
func (r *root) CachePaths() ([]string, error) { return []string{r.path}, nil }

// Mount implements engine.Arm.
func (a *Arm) Mount(ctx context.Context, ws *engine.Workspace, p bench.MountParams) (engine.Root, error) {
	const op = "mount image"
	if err := a.faults.pause(ctx, a.faults.anywhere("slow")); err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	path := p.Image.File
	if !filepath.IsAbs(path) {
		path = filepath.Join(ws.State, "images", path)
	}
	r := &root{arm: a, ws: ws, path: path, pin: p.Image.Sha256, places: map[string]bool{}}
	if err := r.compare(ctx, a.faults.run("mount-refused")); err != nil {
		return nil, &engine.Error{Op: op, Err: err, Hint: "build or fetch the pinned image, or pin this one"}
	}
	a.mu.Lock()
	n := a.images
	a.images++
	a.mu.Unlock()
	a.meddle()
	var err error
	if r.dir, err = ownDirectory(ws, filepath.Join(ws.Work, fmt.Sprintf("image.%d", n))); err != nil {
		return nil, &engine.Error{Op: op, Err: errors.Join(err, r.dir.remove())}
	}
	remember(&lives.roots, r.dir.identity, r)
	return r, nil
}

// compare requires that the image is the pinned one.
func (r *root) compare(ctx context.Context, other bool) error {
	f, err := os.Open(r.path)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if other {
		h.Write([]byte("another image"))
	}
	if have := bench.SHA256(hex.EncodeToString(h.Sum(nil))); have != r.pin {
		return fmt.Errorf("%w: %s has sha256 %s, the pin is %s", engine.ErrRefused, r.path, have, r.pin)
	}
	return nil
}

// Facts implements engine.Root.
func (r *root) Facts() []bench.Fact {
	return []bench.Fact{
		{Name: "image.sha256", Known: true, Value: string(r.pin), Source: r.path, View: engine.ViewHost},
		{Name: "image.attach", Known: true, Value: "none", Source: "engine", View: engine.ViewHost},
	}
}

// Verify implements engine.Root.
func (r *root) Verify(ctx context.Context) error {
	const op = "verify image"
	if r.arm.faults.run("image-unreadable") {
		return &engine.Error{Op: op, Err: fmt.Errorf("%w: read %s: input/output error", engine.ErrUnknown, r.path)}
	}
	if err := r.compare(ctx, r.arm.faults.run("image-changed")); err != nil {
		return &engine.Error{Op: op, Err: err, Hint: "something wrote to the image during the run; its numbers mean nothing"}
	}
	return nil
}

// Release implements engine.Root. As with a real mount, it is an error while a place is still on the image.
func (r *root) Release(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.places {
		return &engine.Error{Op: "release image", Err: fmt.Errorf("%s is still on it", name), Hint: "release every slot before the image"}
	}
	forget(lives.roots, r.dir.identity)
	return r.dir.remove()
}

func (r *root) enter(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.places[name] = true
}

func (r *root) leave(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.places, name)
}
