# A Slurm cluster of this machine alone, for the time of a test file: munge, slurmctld and slurmd in a directory of their own, on ports of
# their own.  Source after helper.bash.

# slurm_start DIR: SLURM_CONF is set for the commands that follow; skips where there is no Slurm or this is not root.
slurm_start() {
	local dir=$1 n=0 host
	need_program srun sbatch scontrol
	PATH=$PATH:/usr/sbin need_program slurmctld slurmd munged
	[ "$(id -u)" -eq 0 ] || skip 'slurmd needs root'
	host=$(hostname -s)
	mkdir -m 755 "$dir" "$dir"/{state,spool,log,munge}
	(umask 077 && head -c 1024 /dev/urandom >"$dir/munge/key")
	cat >"$dir/slurm.conf" <<-END
		ClusterName=test
		SlurmctldHost=$host(127.0.0.1)
		SlurmctldPort=$(free_port)
		SlurmdPort=$(free_port)
		SlurmUser=root
		SlurmdUser=root
		AuthType=auth/munge
		AuthInfo=socket=$dir/munge/socket
		CredType=cred/munge
		StateSaveLocation=$dir/state
		SlurmdSpoolDir=$dir/spool
		SlurmctldPidFile=$dir/slurmctld.pid
		SlurmdPidFile=$dir/slurmd.pid
		SlurmctldLogFile=$dir/log/slurmctld
		SlurmdLogFile=$dir/log/slurmd
		SlurmdParameters=config_overrides
		ProctrackType=proctrack/linuxproc
		TaskPlugin=task/none
		MpiDefault=none
		SelectType=select/cons_tres
		SelectTypeParameters=CR_Core
		ReturnToService=2
		AccountingStorageType=accounting_storage/none
		JobAcctGatherType=jobacct_gather/none
		SwitchType=switch/none
		NodeName=$host NodeAddr=127.0.0.1 CPUs=64 State=UNKNOWN
		PartitionName=test Nodes=$host Default=YES MaxTime=INFINITE State=UP
	END
	export SLURM_CONF=$dir/slurm.conf SLURM_DIR=$dir
	slurm_daemon munged /usr/sbin/munged --foreground --force --key-file="$dir/munge/key" --socket="$dir/munge/socket" \
		--pid-file="$dir/munge/pid" --seed-file="$dir/munge/seed" --log-file="$dir/munge/log"
	wait_socket "$dir/munge/socket"
	slurm_daemon slurmctld /usr/sbin/slurmctld -D -f "$SLURM_CONF"
	slurm_daemon slurmd /usr/sbin/slurmd -D -N "$host" -f "$SLURM_CONF"
	until timeout 10 sinfo -h -o %t 2>/dev/null | grep -qx idle; do
		n=$((n + 1))
		[ "$n" -lt 100 ] || { tail -n 20 "$dir"/log/*.out >&2; return 1; }
		sleep 0.2
	done
}

slurm_daemon() {
	local name=$1
	shift
	"$@" >"$SLURM_DIR/log/$name.out" 2>&1 </dev/null 3>&- &
	echo $! >>"$SLURM_DIR/pids"
}

slurm_stop() {
	local pid
	[ -n "${SLURM_DIR-}" ] && [ -f "$SLURM_DIR/pids" ] || return 0
	timeout 10 scancel -u root 2>/dev/null || true
	for pid in $(tac "$SLURM_DIR/pids"); do
		kill "$pid" 2>/dev/null || true
	done
	rm "$SLURM_DIR/pids"
}
