#!/bin/sh
# mtp.sh: what drafts of the MTP layer cost and gain at batch 1, as ds-decode measures it itself, steps with drafts and without side by side.
# The example model answers its exam with them; on the 2 GB geometry with an MTP layer, whose weights are random, only the cost counts:
# beside it stands what it would gain at the example model's acceptance.
set -eu
cd "$(dirname "$0")/../.."
: "${DS_BUILD:=build}"
PATH=$PWD/$DS_BUILD/bin:$PATH
tiny=examples/models/tiny-r1
large=$DS_BUILD/bench-data/v2lite4-mtp
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
if [ ! -f "$large/.complete" ]; then
	rm -rf "$large"
	mkdir -p "${large%/*}"
	sed 's/"num_hidden_layers": 4,/"num_hidden_layers": 4, "num_nextn_predict_layers": 1,/' examples/bench/v2lite4.json >"$work/config.json"
	ds-model random --like "$work/config.json" --seed 1 --tokenizer "$tiny" -o "$large"
	: >"$large/.complete"
fi

# report MODEL KV THREADS DRAFTS: ds-decode's line of the end, without its beginning.
report() {
	ds-decode -m "$1" -j "$3" --max-batch 1 --mtp "$4" --mtp-always <"$2" 2>&1 >/dev/null | sed -n 's/^ds-decode: mtp: //p'
}

# bytes KV OPTIONS...: bytes of weights that a step of the large model reads, its drafts' among them.
bytes() {
	kv=$1
	shift
	ds-decode -m "$large" --max-batch 1 --log-format json --stats "$@" <"$kv" 2>&1 >/dev/null |
		/usr/bin/python3 -c '
import json, sys
stats = next(line["stats"] for line in map(json.loads, sys.stdin) if "stats" in line)
print(sum(stage["weight_bytes"] for stage in stats["stages"].values()) / stats["steps"])'
}

head -n 40 tests/golden/eval/problems.jsonl | sed 's/"prompt":/"messages":/; s/, "answer".*/}/' >"$work/tiny.jsonl"
ds-token -m "$tiny" encode --jsonl <"$work/tiny.jsonl" | ds-prefill -m "$tiny" --mtp >"$work/tiny.kv"
printf 'What is 348 + 977?' | ds-token -m "$large" encode --ignore-eos --max-tokens 150 | ds-prefill -m "$large" --mtp >"$work/large.kv"

echo "example model, 40 questions of its exam (goal: 1.5 times as fast)"
for threads in 1 2; do
	for drafts in 1 2 3; do
		echo "  $threads threads, $drafts drafts: $(report "$tiny" "$work/tiny.kv" "$threads" "$drafts")"
	done
done
echo "2 GB geometry with an MTP layer, random weights: drafts are wrong, steps cost what they cost"
drafts=$(bytes "$work/large.kv" --mtp 1 --mtp-always)
none=$(bytes "$work/large.kv")
awk -v a="$drafts" -v b="$none" 'BEGIN { printf "  a step with a draft reads %.2f times the bytes: at most %.2f times as fast where memory is the limit\n", a / b, 1.998 * b / a }'
for threads in 1 2; do
	report "$large" "$work/large.kv" "$threads" 1 >"$work/line"
	sed 's/.*takes \([0-9.]*\) times.*/\1/' "$work/line" |
		awk -v t="$threads" '{ printf "  %d threads, 1 draft: a step takes %s times one without; at 99.8 %% acceptance %.2f times as fast\n", t, $1, 1.998 / $1 }'
done
