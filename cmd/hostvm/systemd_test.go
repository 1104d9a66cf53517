package main

// scopes are the words of the scripts about scopes that systemd makes: what is left of a run's, as a unit, a file of
// systemd's or a control group, and one of somebody else's that has to stay.
const scopes = `
scopes() { systemctl list-units --all --no-legend 'drums-*.scope' | grep -v drums-foreign; ls /run/systemd/transient | grep '^drums-[0-9a-f]\{12\}'; find /sys/fs/cgroup -name 'drums-*.scope' | grep -v drums-foreign; }
none() { local left; left=$(scopes); [ -z "$left" ] || { echo "left: $left"; return 1; }; }
`

// The oci arm with systemd's cgroup driver: resets and siblings, a run whose engine is killed, a slot by hand.
func (h host) systemd() {
	h.must(0, scopes+`{ systemd-run -q --scope --unit=drums-foreign sleep 100000 & } && sleep 1
		drumsbench run --arm oci --reset restore -t slots=2 -t rollouts=2 -t cgroups=systemd --out $DRUMSBENCH_STATE/runs/systemd $manifests/light && none`, "passed")
	// Killed as soon as there is a scope.
	h.must(0, scopes+`out=$DRUMSBENCH_STATE/runs/killed
		drumsbench run --arm oci --reset restore -t cgroups=systemd --out $out $manifests/light >/tmp/killed 2>&1 & engine=$!
		until ls -d /sys/fs/cgroup/system.slice/drums-*-slot-0-1.scope >/dev/null 2>&1; do kill -0 $engine || { cat /tmp/killed; exit 9; }; sleep 0.02; done
		kill -9 $engine; wait $engine
		! none || exit 8
		drumsbench sweep --dry-run $out && drumsbench sweep $out && none && systemctl is-active drums-foreign.scope`, "would-take  scope", "taken   scope", "active")
	h.must(0, scopes+`drumsbench slot provision --arm oci --name scoped -t cgroups=systemd $manifests/light && drumsbench slot dump scoped && none &&
		drumsbench slot restore scoped && drumsbench slot reset scoped && drumsbench slot exec scoped -- /bin/busybox cat /proc/self/cgroup &&
		drumsbench slot release scoped && none`, "0::/system.slice/drums-", "-slot-0-3.scope")
	h.must(0, "systemctl stop drums-foreign.scope && clean")
}
