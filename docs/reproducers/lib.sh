# Sourced by the reproducers. Each runs as root, from one command, in namespaces and
# a folder of its own, and exits 0 when the behaviour is seen, 1 when not, 2 when it
# cannot run. DRUMSBENCH_STATE names the state directory whose private CRIU is used,
# CRIU another program.
set -uo pipefail
export PATH=$PATH:/usr/sbin:/sbin LC_ALL=C
criu=${CRIU:-${DRUMSBENCH_STATE:-/var/lib/drumsbench}/criu/current/bin/criu}

cannot() { echo "cannot run: $*" >&2; exit 2; }
seen() { echo "seen: $*"; exit 0; }
unseen() { echo "not seen: $*"; exit 1; }

[[ $(id -u) == 0 ]] || cannot "it needs root"
[[ -x $criu ]] || cannot "no CRIU at $criu: scripts/setup installs one, CRIU names another"
for tool in python3 unshare; do command -v "$tool" >/dev/null || cannot "there is no $tool"; done
# A pid namespace of our own: pids are free again once their tree is gone, and nothing outlives us.
[[ ${inside-} ]] || inside=1 exec unshare -mpf --mount-proc --propagation private --kill-child "$0" "$@"
exec </dev/null # what we inherited lies on mounts of another namespace
version=$("$criu" --version | sed -n 's/^Version: //p')
[[ $version ]] || cannot "$criu does not tell its version"
echo "criu $version, kernel $(uname -r)"

work=$(mktemp -d) || cannot "no folder"
mkdir "$work/images"
dumped= restored= child= # child of the program, where it has one
clean() {
	local pid
	# Pids of a tree that is gone may be somebody else's by now.
	[[ -z $dumped$restored ]] || for pid in $child $dumped $restored; do kill -9 "$pid"; done 2>/dev/null
	rm -rf "$work"
}
trap clean EXIT

# start PROGRAM [ARGUMENT...] runs a Python program in a session of its own, apart from our descriptors;
# it says that it is ready by making $work/ready.
start() {
	setsid python3 "$1" "$work" "${@:2}" </dev/null >"$work/out" 2>&1 10>&- 11>&- 255>&- &
	dumped=$!
	local i
	for ((i = 0; i < 200; i++)); do
		[[ -e $work/ready ]] && return
		sleep 0.05
	done
	cannot "the program is not ready: $(<"$work/out")"
}

# dump and restore the tree of $dumped; what follows is more options. The tree comes back stopped, with its own pids.
dump() {
	timeout -k 5 60 "$criu" --no-default-config dump -t "$dumped" -D "$work/images" -W "$work" -o dump.log -v4 --network-lock skip --manage-cgroups=ignore "$@" ||
		cannot "the dump failed: $(grep Error "$work/dump.log" | tail -3)"
	wait "$dumped" 2>/dev/null # its pid must be free
	was=$dumped dumped=
}
restore() {
	timeout -k 5 60 "$criu" --no-default-config restore -D "$work/images" -W "$work" -o restore.log -v4 -d --leave-stopped --manage-cgroups=ignore "$@" ||
		cannot "the restore failed: $(grep Error "$work/restore.log" | tail -3)"
	restored=$was
}

# serve_lazily starts a server of lazy pages that fills what is touched; a restore with --lazy-pages may follow.
serve_lazily() {
	python3 "$(dirname "${BASH_SOURCE[0]}")/lazy.py" "$work/images" "$work" </dev/null >"$work/server.log" 2>&1 10>&- 11>&- 255>&- &
	server=$!
	trap 'kill -9 $server 2>/dev/null; clean' EXIT
	local i
	for ((i = 0; i < 200; i++)); do
		[[ -e $work/listening ]] && return
		sleep 0.05
	done
	cannot "the server of lazy pages does not listen: $(<"$work/server.log")"
}
