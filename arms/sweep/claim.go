package sweep

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// claim is the run's random number, which every name of its own things bears.
type claim struct {
	id string
	// work is the scratch directory; its last component is id.
	work string
}

var randomID = regexp.MustCompile(`^[0-9a-f]{12}$`)

// maxLine bounds the line that a claim is taken from, in bytes.
const maxLine = 1 << 20

// readClaim takes the claim from the ledger's first line, which is that of the
// scratch directory also after everything is gone. An empty ledger has none.
func readClaim(ledger string) (claim, error) {
	const op = "read ledger"
	f, err := record.OpenRegular(ledger)
	if err != nil {
		return claim{}, &engine.Error{Op: op, Err: err}
	}
	defer f.Close()
	text, err := bufio.NewReader(io.LimitReader(f, maxLine)).ReadBytes('\n')
	if errors.Is(err, io.EOF) { // nothing, or half a line
		return claim{}, nil
	}
	if err != nil {
		return claim{}, &engine.Error{Op: op, Err: err}
	}
	var line bench.LedgerLine
	if err := json.Unmarshal(text, &line); err != nil {
		return claim{}, &engine.Error{Op: op, Err: fmt.Errorf("%s:1: %w", ledger, err)}
	}
	c := claim{id: filepath.Base(line.Claim.Path), work: line.Claim.Path}
	if line.Kind != "directory" || !filepath.IsAbs(c.work) || filepath.Clean(c.work) != c.work || !randomID.MatchString(c.id) {
		return claim{}, &engine.Error{Op: op, Err: fmt.Errorf("%w: %s:1: it does not begin with the run's scratch directory", engine.ErrRefused, ledger), Hint: "this program writes no such ledger; was it edited?"}
	}
	return c, nil
}

// in requires that the scratch directory lies in the state directory.
func (c claim) in(state string) error {
	want, have := filepath.Join(state, "work"), filepath.Dir(c.work)
	if want == have {
		return nil
	}
	a, aerr := os.Stat(want)
	b, berr := os.Stat(have)
	if aerr == nil && berr == nil && os.SameFile(a, b) {
		return nil
	}
	return &engine.Error{
		Op: "sweep run", Err: fmt.Errorf("%w: the run's scratch directory %s does not lie in %s", engine.ErrRefused, c.work, want),
		Hint: "name the state directory that the run had: --state " + filepath.Dir(have),
	}
}

// named says whether a component of a path is the run's: drums-ID or drums-ID-….
func (c claim) named(part string) bool {
	rest, ok := strings.CutPrefix(part, "drums-"+c.id)
	return ok && (rest == "" || rest[0] == '-')
}

// split returns where the run's own part of a path begins: the directory above
// it, which is not the run's, and the rest. ok is false for a path without one.
func (c claim) split(path string) (above, own string, ok bool) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return "", "", false
	}
	if rest, below := strings.CutPrefix(path, c.work); below && (rest == "" || rest[0] == '/') {
		return filepath.Dir(c.work), c.id + rest, true
	}
	parts := strings.Split(path, "/")
	for i, part := range parts {
		if c.named(part) {
			return "/" + filepath.Join(parts[:i]...), filepath.Join(parts[i:]...), true
		}
	}
	return "", "", false
}

// refuses says why a line of the ledger cannot be about a thing of the run's; empty if it can.
func (c claim) refuses(o record.Owned) string {
	path := o.Claim.Path
	switch o.Kind {
	case "process":
		path = o.Claim.Cgroup
	case "loop": // its name is what the kernel keeps with the device
		if path == "drums-"+c.id {
			return ""
		}
	case "export":
		if strings.HasPrefix(path, "/dev/nbd") { // a device has no name of its own
			return ""
		}
	case "link":
		return ""
	}
	if _, _, ok := c.split(path); !ok {
		return fmt.Sprintf("%q does not bear the run's claim %s", path, c.id)
	}
	return ""
}

// identity is device and inode as the ledger keeps them.
type identity struct{ dev, ino uint64 }

// bound is the identity that a thing was bound with. ok is false if there is
// none: the engine died between the act and the line.
func bound(o record.Owned) (id identity, ok bool, err error) {
	if o.Identity == nil {
		return identity{}, false, nil
	}
	dev, derr := strconv.ParseUint(string(o.Identity.Dev), 10, 64)
	ino, ierr := strconv.ParseUint(string(o.Identity.Ino), 10, 64)
	if err := errors.Join(derr, ierr); err != nil {
		return identity{}, false, fmt.Errorf("%w: the ledger's identity is no device and inode: %w", engine.ErrUnknown, err)
	}
	return identity{dev, ino}, true, nil
}
