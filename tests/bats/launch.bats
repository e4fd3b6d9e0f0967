# Who starts the ranks of a unit: a shell, mpirun, srun, and what torchrun and Kubernetes set.  All are given the same command line, and all
# answers are the bits of one process.
load helper
load slurm

DSF=$DS_ROOT/tests/bats/dsf.py
ANSWERS=$DS_ROOT/tests/bats/answers.py
if [ -n "$DS_SANITIZE" ]; then MANY=8; else MANY=24; fi

setup_file() {
	cd "$BATS_FILE_TMPDIR" || return 1
	(cd "$DS_ROOT" && "$PYTHON" "$ANSWERS" mix "$MANY") >lines
	"$PYTHON" "$DSF" requests <lines >all
	for r in 0 1 2 3; do
		awk -v r="$r" 'NR % 4 == r' lines | "$PYTHON" "$DSF" requests >"in.$r"
	done
	limited ds-decode -m "$DS_MODEL" all | table - | sort >want
	[ "$(grep -c ' done ' want)" -eq "$MANY" ]
}

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
	ln -s "$BATS_FILE_TMPDIR"/{in.[0-3],want} .
	RANK_COMMAND=(ds-decode -m "$DS_MODEL" -j 1 --unit unix:unit --redundant 8 -i in.%r -o out.%r)
}

teardown() {
	end_background
	slurm_stop
}

table() {
	"$PYTHON" "$ANSWERS" table --no-hits "$@"
}

# answered [WORLD]: out.0 to out.3 hold all answers.
answered() {
	local r
	for r in 0 1 2 3; do
		table "out.$r"
	done | sort | cmp want -
}

# all_of COMMAND...: four at once, with $R set to 0 .. 3; all must exit 0.
all_of() {
	local pids='' p bad=0
	for R in 0 1 2 3; do
		export R
		background "$@"
		pids="$pids $BG"
	done
	for p in $pids; do
		wait "$p" || bad=$?
	done
	[ "$bad" -eq 0 ] || { cat "$BATS_TEST_TMPDIR"/bg.*.err >&2; return 1; }
}

@test "a shell, by options and by DS_ variables" {
	# shellcheck disable=SC2016
	all_of sh -c 'exec "$@" --rank "$R" --world 4' - "${RANK_COMMAND[@]}"
	answered
	rm out.*
	# shellcheck disable=SC2016
	all_of sh -c 'DS_RANK=$R DS_WORLD_SIZE=4 exec "$@"' - "${RANK_COMMAND[@]}"
	answered
	rm out.*
	# shellcheck disable=SC2016
	DS_WORLD_SIZE=4 all_of sh -c 'exec "$@" --rank "$R"' - "${RANK_COMMAND[@]}"
	answered
}

@test "mpirun of Open MPI" {
	need_program mpirun
	limited mpirun --allow-run-as-root --oversubscribe -n 4 "${RANK_COMMAND[@]}"
	answered
	rm out.*
	# without an address they are four processes that know nothing of each other
	limited mpirun --allow-run-as-root --oversubscribe -n 4 \
		sh -c 'exec ds-decode -m "$DS_MODEL" -j 1 -i "in.$OMPI_COMM_WORLD_RANK" -o "out.$OMPI_COMM_WORLD_RANK" -v' 2>said
	answered
	[ "$(grep -c 'OMPI_COMM_WORLD_RANK: rank [0-3] of 4, but no --unit: this process works alone' said)" -eq 4 ]
}

@test "srun, and the batch script in examples/" {
	slurm_start "$BATS_TEST_TMPDIR/slurm"
	limited srun -n 4 "${RANK_COMMAND[@]}"
	answered
	rm out.*
	limited sbatch --wait -n 4 -o batch.log "$DS_ROOT/examples/unit.sbatch" "$DS_MODEL" "$PWD" -j 1 --redundant 8 || { cat batch.log; false; }
	answered
}

@test "a batch script that forgets srun is told so" {
	export SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=4
	refused 78 "SLURM_PROCID is '0', but SLURM_STEP_NUM_TASKS is not set" ds-decode -m "$DS_MODEL" --unit unix:unit in.0
	limited ds-decode -m "$DS_MODEL" in.0 >alone # that is nothing to a process that is no rank
	table alone >/dev/null
}

@test "torchrun's variables, a LeaderWorkerSet's, an indexed job's" {
	all_of sh -c 'RANK=$R WORLD_SIZE=4 LOCAL_RANK=$R exec "$@"' - "${RANK_COMMAND[@]}"
	answered
	rm out.*
	all_of sh -c 'LWS_WORKER_INDEX=$R LWS_GROUP_SIZE=4 LWS_LEADER_ADDRESS=localhost exec "$@"' - "${RANK_COMMAND[@]}"
	answered
	rm out.*
	all_of sh -c 'JOB_COMPLETION_INDEX=$R exec "$@" --world 4' - "${RANK_COMMAND[@]}"
	answered
}

# The fault: nodes taken for processes, a hang in which nobody says why.
@test "RANK without LOCAL_RANK is refused, where it matters" {
	export RANK=1 WORLD_SIZE=4
	refused 78 'RANK without LOCAL_RANK means nodes to some launchers and processes to others' \
		ds-decode -m "$DS_MODEL" --unit unix:unit in.1
	limited ds-decode -m "$DS_MODEL" in.1 >alone
	table alone >/dev/null
}

@test "numbers that make no sense are refused by name" {
	OMPI_COMM_WORLD_RANK=four OMPI_COMM_WORLD_SIZE=4 refused 78 "OMPI_COMM_WORLD_RANK: 'four'" ds-decode -m "$DS_MODEL" --unit unix:unit in.1
	refused 78 '--rank 4 is not below --world 4' ds-decode -m "$DS_MODEL" --unit unix:unit --rank 4 --world 4 in.1
	refused 78 '--rank 1: of how many is not said' ds-decode -m "$DS_MODEL" --unit unix:unit --rank 1 in.1
	refused 78 'use --world N' env JOB_COMPLETION_INDEX=1 ds-decode -m "$DS_MODEL" --unit unix:unit in.1
}

@test "options of a unit say nothing without one" {
	local option
	for option in '--rank 1' '--world 2' '--local-rank 0' '--redundant 8' '--transport tcp' '--unit-timeout 1s' '--micro-batches 1' \
		'--dispatch-tokens 8' '--link-delay 1ms' '--link-rate 1M' --loads '--loads-to x' '--load-interval 1s'; do
		for program in ds-decode ds-prefill; do
			# shellcheck disable=SC2086 # an option and its argument
			refused 64 "${option%% *} says nothing without --unit" "$program" -m "$DS_MODEL" $option in.0
		done
	done
	refused 64 "--transport: 'rdma'" ds-decode -m "$DS_MODEL" --unit unix:unit --world 1 --transport rdma in.0
	refused 64 "a % of a rank's file" ds-decode -m "$DS_MODEL" --unit unix:unit --world 1 -o out.%d in.0
	refused 64 '--load-interval says nothing without' ds-decode -m "$DS_MODEL" --unit unix:unit --world 1 --load-interval 1s in.0
}

@test "names: %r is the rank, %l the local rank, %% a %; without a unit they are what they are" {
	limited ds-decode -m "$DS_MODEL" -j 1 --unit unix:unit --rank 0 --world 1 --local-rank 3 -i in.%r -o 'out.%r-%l-%%r'
	[ -e 'out.0-3-%r' ]
	limited ds-decode -m "$DS_MODEL" -j 1 -i in.0 -o 'out.%r'
	[ -e 'out.%r' ]
	limited ds-decode -m "$DS_MODEL" -j 1 --unit "unix:unit%r" --world 1 -i in.0 -o 'out.%%x' # --unit is the same for all
	[ -e 'out.%x' ]
}

@test "examples/unit.sh answers questions with several ranks as one process does" {
	printf '{"id": "%s", "messages": [{"role": "user", "content": "What is %d + 977?"}]}\n' a 348 b 17 c 5 >questions
	ds-token -m "$DS_MODEL" encode --jsonl <questions | limited ds-decode -m "$DS_MODEL" | ds-token -m "$DS_MODEL" decode --jsonl | sort >one
	limited sh "$DS_ROOT/examples/unit.sh" "$DS_MODEL" 3 -j 1 --redundant 8 <questions | sort >three
	cmp one three
	[ "$(wc -l <three)" -eq 3 ]
}

@test "the Kubernetes manifest in examples/ has only fields that there are, and options that our programs take" {
	[ -x /usr/bin/python3 ] && /usr/bin/python3 -c 'import yaml' 2>/dev/null || skip 'no python3-yaml'
	"$PYTHON" "$DS_ROOT/tests/bats/manifest.py" "$DS_ROOT/examples/units.yaml"
	# where there is a cluster it says so itself
	if command -v kubectl >/dev/null && timeout 10 kubectl api-resources --api-group=leaderworkerset.x-k8s.io 2>/dev/null | grep -q LeaderWorkerSet; then
		timeout 30 kubectl apply --dry-run=client -f "$DS_ROOT/examples/units.yaml"
	fi
	# the check can fail
	sed 's/restartPolicy: None/restartPolicy: Never/' "$DS_ROOT/examples/units.yaml" >bad.yaml
	run -1 "$PYTHON" "$DS_ROOT/tests/bats/manifest.py" bad.yaml
	sed 's/--unit-timeout/--unit-timeou/' "$DS_ROOT/examples/units.yaml" >bad.yaml
	run -1 "$PYTHON" "$DS_ROOT/tests/bats/manifest.py" bad.yaml
	sed 's/        volumes:/        volume:/' "$DS_ROOT/examples/units.yaml" >bad.yaml
	run -1 "$PYTHON" "$DS_ROOT/tests/bats/manifest.py" bad.yaml
}
