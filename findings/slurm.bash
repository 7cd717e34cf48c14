# Slurm 22.05.8 of Debian 12 in the temporary folder: munged, slurmctld and one node, by root.
slurm() { # LINE…: of slurm.conf, beside those below
	root_only
	debs slurmctld=22.05.8-4+deb12u3 slurmd=22.05.8-4+deb12u3 slurm-client=22.05.8-4+deb12u3 \
		slurm-wlm-basic-plugins=22.05.8-4+deb12u3 munge=0.5.15-2+deb12u1 libmunge2=0.5.15-2+deb12u1 \
		libhwloc15=2.9.0-1 libjson-c5=0.16-2 libyaml-0-2=0.2.5-1 libnuma1=2.0.16-1 \
		libreadline8=8.2-1.3 liblz4-1=1.9.4-1
	local libraries host first try
	libraries=$place/root/usr/lib/$(uname -m)-linux-gnu
	host=$(hostname -s)
	first=$((12000 + RANDOM % 7000))
	export LD_LIBRARY_PATH=$libraries/slurm-wlm:$LD_LIBRARY_PATH SLURM_CONF=$place/etc/slurm.conf
	mkdir -p etc log state spool
	(umask 077 && head -c 1024 /dev/urandom >etc/munge.key)
	cat >etc/slurm.conf <<-END
		ClusterName=finding
		SlurmctldHost=$host(127.0.0.1)
		SlurmctldPort=$first
		SlurmUser=root
		PluginDir=$libraries/slurm-wlm
		AuthType=auth/munge
		AuthInfo=socket=$place/munge.socket
		CredType=cred/munge
		SlurmctldPidFile=$place/slurmctld.pid
		SlurmdPidFile=$place/slurmd.pid
		SlurmctldLogFile=$place/log/slurmctld
		SlurmdLogFile=$place/log/slurmd
		SlurmdSpoolDir=$place/spool
		StateSaveLocation=$place/state
		ProctrackType=proctrack/linuxproc
		TaskPlugin=task/none
		JobAcctGatherType=jobacct_gather/none
		AccountingStorageType=accounting_storage/none
		SelectType=select/cons_tres
		SelectTypeParameters=CR_CPU
		SlurmdParameters=config_overrides
		MpiDefault=none
		MailProg=/bin/true
		$(printf '%s\n' "$@")
		NodeName=node NodeHostname=$host NodeAddr=127.0.0.1 Port=$((first + 1)) CPUs=4 State=UNKNOWN
		PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
	END
	printf 'CgroupPlugin=cgroup/v1\nCgroupMountpoint=%s\n' "$place/cgroup" >etc/cgroup.conf
	chmod 711 "$place"
	on_exit+=(slurm_ends)
	munged --force --socket="$place/munge.socket" --key-file=etc/munge.key --pid-file="$place/munged.pid" \
		--log-file="$place/log/munged" --seed-file="$place/seed" --num-threads=2 2>log/munged.start
	slurmctld-wlm -f "$SLURM_CONF" || cannot "slurmctld does not start"
	slurmd-wlm -N node -f "$SLURM_CONF" -d "$place/root/usr/sbin/slurmstepd-wlm" ||
		cannot "slurmd does not start: $(tail -n 1 log/slurmd)"
	for ((try = 0; try < 100; try++)); do
		[[ $(sinfo -h -o %t) != idle ]] || return 0
		sleep 0.1
	done
	tail -n 3 log/* >&2
	cannot "the node is not ready"
}

torque() { # what Slurm has of Torque's commands; before slurm
	debs slurm-wlm-torque=22.05.8-4+deb12u3 libslurm-perl=22.05.8-4+deb12u3 \
		libslurm38=22.05.8-4+deb12u3 libswitch-perl=2.17-3
	export PERL5LIB=$place/root/usr/lib/x86_64-linux-gnu/perl5/5.36:$place/root/usr/share/perl5
}

slurm_ends() {
	scancel --quiet --user=root
	local file pid try
	for ((try = 0; try < 100; try++)); do
		[[ -n $(squeue -h) ]] || break
		sleep 0.1
	done
	for file in slurmd slurmctld munged; do
		read -r pid <"$place/$file.pid" || continue
		kill -TERM "$pid"
		for ((try = 0; try < 100; try++)); do
			[[ -d /proc/$pid ]] || break
			sleep 0.1
		done
	done
} 2>/dev/null
