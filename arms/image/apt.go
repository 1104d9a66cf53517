package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
)

// keyring is what the archive's signatures are checked against; the package debian-archive-keyring has it.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// Package is one Debian package of an image.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Arch    string `json:"arch"`
	// SHA256 of the .deb, from the signed index.
	SHA256 string `json:"sha256"`
	// Size of the .deb in bytes.
	Size int64 `json:"size"`
}

// apt is a private apt: its own sources, lists and cache below dir, and an empty
// dpkg status. It shares with the host only which archive to use and how to reach it.
type apt struct {
	dir, suite, arch string
	// sources in the one-line format.
	sources []string
	// options that tell how to reach the archive, as lines of apt.conf.
	options []string
}

// newAPT reads the host's apt configuration and lays out the private one.
func newAPT(ctx context.Context, dir, suite string) (*apt, error) {
	if _, err := os.Stat(keyring); err != nil {
		return nil, refuse("check packages", "apt-get install debian-archive-keyring", "the keyring %s cannot be read: %v", keyring, err)
	}
	arch, err := run(ctx, "read architecture", "dpkg", "--print-architecture")
	if err != nil {
		return nil, err
	}
	targets, err := run(ctx, "read the machine's apt sources", "apt-get", "indextargets")
	if err != nil {
		return nil, err
	}
	dump, err := run(ctx, "read the machine's apt configuration", "apt-config", "dump")
	if err != nil {
		return nil, err
	}
	a := &apt{dir: dir, suite: suite, arch: strings.TrimSpace(string(arch)), options: reachOptions(dump)}
	if a.sources, err = debianSources(targets, suite); err != nil {
		return nil, err
	}
	return a, a.layout()
}

// debianSources picks the Debian archives out of the output of "apt-get
// indextargets" and returns source lines of suite for them.
func debianSources(targets []byte, suite string) ([]string, error) {
	var main, security string
	var updates bool
	for stanza := range bytes.SplitSeq(targets, []byte("\n\n")) {
		field := map[string]string{}
		for line := range strings.Lines(string(stanza)) {
			if key, value, ok := strings.Cut(line, ": "); ok {
				field[key] = strings.TrimSpace(value)
			}
		}
		if field["Created-By"] != "Packages" || field["Origin"] != "Debian" {
			continue
		}
		switch field["Label"] {
		case "Debian":
			if main == "" {
				main = field["Repo-URI"]
			}
			updates = updates || field["Repo-URI"] == main && strings.HasSuffix(field["Release"], "-updates")
		case "Debian-Security":
			if security == "" {
				security = field["Repo-URI"]
			}
		}
	}
	if main == "" {
		return nil, refuse("find the Debian archive", "name a Debian archive in the machine's apt sources, then run apt-get update",
			"the machine's own apt knows none")
	}
	line := func(uri, release string) string {
		return fmt.Sprintf("deb [signed-by=%s] %s %s main", keyring, uri, release)
	}
	sources := []string{line(main, suite)}
	if slices.Contains([]string{"sid", "unstable", "experimental"}, suite) {
		return sources, nil
	}
	if updates {
		sources = append(sources, line(main, suite+"-updates"))
	}
	if security != "" {
		sources = append(sources, line(security, suite+"-security"))
	}
	return sources, nil
}

// reach names the settings that say how an archive is reached. Nothing that
// lowers the check of signatures is among them.
var reach = regexp.MustCompile(`^Acquire::(http|https|ftp|Retries|Check-Valid-Until|Check-Date|ForceIPv4|ForceIPv6)(::[^ ]*)? "[^"]*";$`)

// reachOptions filters the output of "apt-config dump".
func reachOptions(dump []byte) []string {
	var options []string
	for line := range strings.Lines(string(dump)) {
		line = strings.TrimSpace(line)
		if reach.MatchString(line) && !strings.HasSuffix(line, ` "";`) {
			options = append(options, line)
		}
	}
	return options
}

func (a *apt) layout() error {
	for _, dir := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(a.dir, dir), 0o755); err != nil {
			return &engine.Error{Op: "lay out package lists", Err: err}
		}
	}
	// Neither the host's fragments nor its preferences: they hold hooks and pins that are the host's business.
	conf := append([]string{
		`Dir::State "` + a.dir + `";`,
		`Dir::State::lists "` + a.dir + `/lists";`,
		`Dir::State::status "` + a.dir + `/status";`,
		`Dir::Cache "` + a.dir + `/cache";`,
		`Dir::Etc::SourceList "` + a.dir + `/sources.list";`,
		`Dir::Etc::SourceParts "/dev/null";`,
		`Dir::Etc::Main "/dev/null";`,
		`Dir::Etc::Parts "/dev/null";`,
		`Dir::Etc::Preferences "/dev/null";`,
		`Dir::Etc::PreferencesParts "/dev/null";`,
		`APT::Architecture "` + a.arch + `";`,
		`APT::Architectures "` + a.arch + `";`,
		`APT::Install-Recommends "false";`,
		`pkgCacheGen::ForceEssential ",";`, // as mmdebstrap: else apt itself counts as essential
		`APT::Update::Error-Mode "any";`,
		`APT::Sandbox::User "root";`,
		`Acquire::Languages "none";`,
		`Acquire::ForceHash "SHA256";`, // else --print-uris tells the MD5
	}, a.options...)
	for name, lines := range map[string][]string{"apt.conf": conf, "sources.list": a.sources, "status": nil} {
		text := strings.Join(lines, "\n")
		if text != "" {
			text += "\n"
		}
		if err := os.WriteFile(filepath.Join(a.dir, name), []byte(text), 0o644); err != nil {
			return &engine.Error{Op: "lay out package lists", Err: err}
		}
	}
	return nil
}

func (a *apt) get(ctx context.Context, op string, args ...string) ([]byte, error) {
	cmd, err := command(ctx, "apt-get", args...)
	if err != nil {
		return nil, err
	}
	cmd.Env = append(cmd.Env, "APT_CONFIG="+filepath.Join(a.dir, "apt.conf"), "DEBIAN_FRONTEND=noninteractive")
	return output(ctx, op, cmd)
}

// update fetches the lists. Where that fails but lists of an earlier time are
// there, it returns those as stale with the reason: a rebuild works offline.
func (a *apt) update(ctx context.Context) (stale error, err error) {
	_, err = a.get(ctx, "update package lists", "-qq", "update")
	if err == nil || ctx.Err() != nil {
		return nil, err
	}
	lists, globErr := filepath.Glob(filepath.Join(a.dir, "lists", "*_Packages*"))
	if globErr != nil || len(lists) == 0 {
		return nil, err
	}
	return err, nil
}

// essential is mmdebstrap's own pattern for its variant "essential".
func (a *apt) essential() string {
	return fmt.Sprintf("?narrow(?or(?archive(^%s$),?codename(^%s$)),?architecture(%s),?essential)", a.suite, a.suite, a.arch)
}

// resolve returns every package that an image with these packages has, sorted by name.
func (a *apt) resolve(ctx context.Context, packages []string) ([]Package, error) {
	args := append([]string{"-qq", "--yes", "--print-uris", "install", a.essential(), mergedUsr}, packages...)
	uris, err := a.get(ctx, "resolve packages", args...)
	if err != nil {
		return nil, err
	}
	return parseURIs(uris)
}

// uriLine is a line of "apt-get --print-uris": 'URI' FILE SIZE SHA256:DIGEST.
var uriLine = regexp.MustCompile(`^'[^']*' ([^ _]+)_([^ _]+)_([^ _]+)\.deb ([0-9]+) SHA256:([0-9a-f]{64})$`)

func parseURIs(out []byte) ([]Package, error) {
	var found []Package
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		m := uriLine.FindStringSubmatch(line)
		if m == nil {
			return nil, &engine.Error{Op: "resolve packages", Err: fmt.Errorf("apt-get wrote a line that is no package with a SHA256: %q", line)}
		}
		version, err := url.PathUnescape(m[2]) // the colon of an epoch is %3a in a file name
		if err != nil {
			return nil, &engine.Error{Op: "resolve packages", Err: err}
		}
		size, err := strconv.ParseInt(m[4], 10, 64)
		if err != nil {
			return nil, &engine.Error{Op: "resolve packages", Err: err}
		}
		found = append(found, Package{Name: m[1], Version: version, Arch: m[3], SHA256: m[5], Size: size})
	}
	if len(found) == 0 {
		return nil, &engine.Error{Op: "resolve packages", Err: errors.New("apt-get named no package")}
	}
	slices.SortFunc(found, func(x, y Package) int { return strings.Compare(x.Name, y.Name) })
	return found, nil
}
