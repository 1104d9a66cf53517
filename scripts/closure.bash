# Read by scripts/*-closure: makes a private copy of a program from a newer suite of Debian, with its
# own loader and libraries, so that nothing of that suite comes into the system. The packages are
# Debian's own, from the mirror that this machine's apt uses, checked against Debian's archive key.
#
# A closure appears only when it is complete: `current` is switched last, by rename. Its folder is named
# for the hash of its packages. With a complete closure nothing is done; remove `current` to look for a
# newer one.
#
# The script that reads this sets: program, what (its name in messages), otherwise (the remedy where
# it cannot be made), root (the folder of its closures).
# shellcheck shell=bash disable=SC2154 # those four
set -euo pipefail
readonly keyring=/usr/share/keyrings/debian-archive-keyring.gpg

die() { # MESSAGE REMEDY
	printf '%s: %s\n  remedy: %s\n' "${0##*/}" "$1" "$2" >&2
	exit 1
}

# begin_closure ends the script where there is a complete closure, and otherwise makes work and staging.
begin_closure() {
	# The path goes into the program's interpreter and rpath and into JSON, none of which can quote.
	[[ $root =~ ^/[A-Za-z0-9/._+-]+$ ]] ||
		die "cannot bake the path \"$root\" into a program" "let DRUMSBENCH_STATE be an absolute path of letters, digits and / . _ + -"
	mkdir -p "$root"
	exec 9>"$root/.lock"
	flock 9 # two set-ups at once: the second waits and then finds the closure there
	# Complete, and not moved here from another path than the one that is baked in?
	local now
	now=$root/$(readlink "$root/current" || true)/bin/$program
	if [[ -x $now ]] && grep -qsF "\"path\": \"$now\"" "$root/current/closure.json"; then
		exit 0
	fi
	[[ -r $keyring && -z $(dpkg -V debian-archive-keyring 2>&1) ]] ||
		die "$keyring is absent or differs from its package" "apt-get install --reinstall debian-archive-keyring"
	work=$(mktemp -d)
	staging=$root/.staging
	made=
	trap 'rm -rf "$work" "$staging" ${made:+"$made"}' EXIT
	chmod 755 "$work" # apt downloads as its own user
	rm -rf "$staging"
	mkdir -p "$staging"/{bin,lib}
}

# Debian's archive from the mirror that this machine's apt uses: never a host name of our own.
mirror() {
	# shellcheck disable=SC2016 # apt fills this in
	apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 'Origin: Debian' 'Label: Debian' | sed -n 1p
}

# read_suites SUITE... makes an apt with lists, cache and state of its own, to which nothing is installed:
# the solver then names the whole closure, and nothing of the suite can leak into the system.
read_suites() {
	local from suite
	from=$(mirror)
	if [[ -z $from ]]; then # a machine with no lists does not know yet whose archive it has
		apt-get -qq update </dev/null || true
		from=$(mirror)
	fi
	[[ -n $from ]] || die "this machine's apt knows no Debian archive" "give apt a Debian source, or $otherwise"
	mkdir -p "$work"/{lists,archives}/partial "$work/tree"
	: >"$work/status"
	for suite in "$@"; do
		echo "deb [target=Packages signed-by=$keyring] $from $suite main"
	done >"$work/sources.list"
	apt=(
		-o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=/dev/null
		-o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null
		-o "Dir::State::Status=$work/status" -o "Dir::State::Lists=$work/lists"
		-o "Dir::Cache=$work" -o "Dir::Cache::Archives=$work/archives"
		-o Acquire::AllowInsecureRepositories=false -o APT::Get::AllowUnauthenticated=false
		-o Acquire::Languages=none -o APT::Install-Recommends=false
	)
	apt-get "${apt[@]}" -qq update >"$work/log" 2>&1 || { cat "$work/log" >&2
		die "cannot read Debian $* from this machine's mirror" "mend the mirror, or $otherwise"; }
}

# download OLDEST PACKAGES SUITE... takes the packages of the first suite that has one new enough; version
# is the package's afterwards. Of other packages that one needs, name them behind it: "qemu-system-x86 qemu-utils".
download() {
	local oldest=$1 suite
	local -a packages
	read -ra packages <<<"$2"
	shift 2
	version=
	for suite in "$@"; do
		rm -f "$work"/archives/*.deb
		apt-get "${apt[@]}" -qq -y -t "$suite" --download-only install "${packages[@]}" >"$work/log" 2>&1 || continue
		version=$(dpkg-deb -f "$work/archives/${packages[0]}"_*.deb Version)
		dpkg --compare-versions "$version" ge "$oldest" && break
		version=
	done
	[[ -n $version ]] || { cat "$work/log" >&2
		die "the mirror offers no $what of $oldest or newer with its libraries" "$otherwise"; }
	local deb
	for deb in "$work"/archives/*.deb; do
		sha256[$deb]=$(sha256sum <"$deb" | cut -d' ' -f1)
		mkdir "$work/tree/${deb##*/}"
		dpkg-deb -x "$deb" "$work/tree/${deb##*/}"
	done
	dest=$root/${version//:/-}-$(printf '%s\n' "${sha256[@]}" | sort | sha256sum | cut -c1-12)
}
declare -A sha256 # by package file
declare -A used   # package files that gave something

take() { # NAME DESTINATION [FOLDER...]: a file of the packages, which lies in such a folder
	local name=$1 to=$2 found folder
	local -a where=()
	shift 2
	(($#)) || set -- 'lib/*' lib64 sbin bin
	for folder in "$@"; do
		where+=(${where:+-o} -path "*/$folder/$name")
	done
	found=$(find "$work/tree" ! -type d \( "${where[@]}" \) -print -quit)
	[[ -n $found ]] || die "no package of the closure holds $name" "$otherwise"
	mkdir -p "$to"
	cp -L "$found" "$to/$name"
	found=${found#"$work/tree/"}
	used[$work/archives/${found%%/*}]=1
}

# follow NAME... takes what programs of bin/ need, through each library; the loader comes along as the interpreter.
follow() {
	local loader name
	local -a queue=()
	for name in "$@"; do
		queue+=("$staging/bin/$name")
	done
	loader=$(patchelf --print-interpreter "$staging/bin/$1")
	loader=${loader##*/}
	take "$loader" "$staging/lib"
	while ((${#queue[@]})); do
		for name in $(patchelf --print-needed "${queue[0]}"); do
			[[ -e $staging/lib/$name ]] && continue
			take "$name" "$staging/lib"
			queue+=("$staging/lib/$name")
		done
		queue=("${queue[@]:1}")
	done
	# rpath, not runpath: only that also serves the libraries' own needs.
	for name in "$@"; do
		patchelf --set-interpreter "$dest/lib/$loader" --force-rpath --set-rpath "$dest/lib" "$staging/bin/$name"
	done
	interpreter=$dest/lib/$loader
}

# describe NAME writes closure.json, the program under NAME. Every value is of a set that needs no quoting: a path that was
# checked above, package fields, hashes. No tool for JSON is asked of a fresh machine.
describe() {
	local deb
	list() { # lines to the elements of a JSON array
		sed -e '$!s/$/,/' -e 's/^/    /'
	}
	{
		printf '{\n  "%s": {"path": "%s", "version": "%s", "sha256": "%s"},\n' \
			"$1" "$dest/bin/$program" "$version" "$(sha256sum <"$staging/bin/$program" | cut -d' ' -f1)"
		printf '  "packages": [\n'
		for deb in "${!used[@]}"; do
			# shellcheck disable=SC2016 # dpkg-deb fills this in
			dpkg-deb --showformat '{"name": "${Package}", "version": "${Version}", "architecture": "${Architecture}", ' -W "$deb"
			printf '"sha256": "%s", "file": "%s"}\n' "${sha256[$deb]}" "${deb##*/}"
		done | sort | list
		printf '  ],\n  "libraries": [\n'
		(cd "$staging/lib" && sha256sum -- *) | sed 's/^\([0-9a-f]*\)  \(.*\)$/{"name": "\2", "sha256": "\1"}/' | list
		printf '  ]\n}\n'
	} >"$staging/closure.json"
}

# publish puts the closure in place and asks the program whether it starts. The baked path exists only
# after this rename; nobody looks there before `current` names it.
publish() {
	local stray
	made=$dest
	rm -rf "$dest"
	sync -f "$staging"
	mv -T "$staging" "$dest"
	stray=$("$interpreter" --list "$dest/bin/$program" | grep '=>' | grep -vF "=> $dest/lib/" || true)
	[[ -z $stray ]] || die "$what would use libraries of the system:"$'\n'"$stray" "report this; meanwhile $otherwise"
	"$dest/bin/$program" --version >/dev/null || die "the private $what does not start" "$otherwise"
	ln -sfn "${dest##*/}" "$root/.current"
	mv -T "$root/.current" "$root/current"
	made=
	echo "$what $version with $(find "$dest/lib" -type f | wc -l) private libraries: $dest"
}
