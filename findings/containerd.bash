# containerd 1.6.20 of Debian 12 in the temporary folder, by root.
containerd_daemon() { # PACKAGE=VERSION…: more of them
	root_only
	debs containerd=1.6.20~ds1-1+deb12u3 "$@"
	local try
	cat >configuration <<-END
		version = 2
		root = "$place/kept"
		state = "$place/state"
		disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]
		[grpc]
		  address = "$place/socket"
	END
	containerd --config configuration --log-level error >log 2>&1 &
	on_exit+=("kill $!; wait $!")
	for ((try = 0; try < 100; try++)); do
		[[ ! -S socket ]] || break
		sleep 0.1
	done
	ask version >>words || cannot "containerd does not start: $(tail -n 1 log)"
}
ask() { ctr --address "$place/socket" "$@" 2>>words; }
