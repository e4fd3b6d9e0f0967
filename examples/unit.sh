#!/bin/sh
# unit.sh MODEL WORLD [OPTION...] < QUESTIONS > ANSWERS: WORLD ranks of ds-decode on this machine, one expert-parallel unit.  QUESTIONS has a
# request a line, as JSON (ds-token(1)); each rank answers every WORLD-th.  ANSWERS has an object a line.  Options go to every rank.
#
#   printf '{"id":"%s","messages":[{"role":"user","content":"What is %d + 977?"}]}\n' a 348 b 17 | examples/unit.sh MODEL 2 --redundant 8
set -eu
if [ $# -lt 2 ]; then
	echo 'usage: unit.sh MODEL WORLD [OPTION...] < QUESTIONS > ANSWERS' >&2
	exit 64
fi
model=$1
world=$2
shift 2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cat >"$dir/questions"

rank=0
ranks=
while [ "$rank" -lt "$world" ]; do
	awk -v r="$rank" -v w="$world" 'NR % w == r' "$dir/questions" | ds-token -m "$model" encode --jsonl >"$dir/in.$rank"
	# What follows the name of the program is the same for all: a launcher that says who is who (srun, mpirun) needs this line alone.
	DS_RANK=$rank DS_WORLD_SIZE=$world \
		ds-decode -m "$model" --unit "unix:$dir/unit" -i "$dir/in.%r" -o "$dir/out.%r" "$@" &
	ranks="$ranks $!"
	rank=$((rank + 1))
done
status=0
for pid in $ranks; do
	wait "$pid" || status=$?
done
for out in "$dir"/out.*; do
	[ ! -e "$out" ] || ds-token -m "$model" decode --jsonl <"$out" || status=$?
done
exit "$status"
