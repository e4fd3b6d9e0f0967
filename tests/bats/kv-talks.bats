# Dialogues with a store of KV blocks: each turn finds what earlier ones left, of prompts and, with --store-generated, of answers.
load helper

DSF=$DS_ROOT/tests/bats/dsf.py
ANSWERS=$DS_ROOT/tests/bats/answers.py
TALK=$DS_ROOT/tests/bats/kv_talk.py
if [ -n "$DS_SANITIZE" ]; then MANY=6 TURNS=3; else MANY=6 TURNS=8; fi

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
}

teardown() {
	end_background
}

# talks NAME PREFILL-OPTIONS DECODE-OPTIONS [REQUESTS]: all turns, each stage a new process; NAME.N.lines, .kv, .answers; prints the sum of
# hits of each turn.
talks() {
	local t
	"$PYTHON" "$TALK" begin "$MANY" >"$1.1.lines"
	for ((t = 1; t <= TURNS; t++)); do
		"$PYTHON" "$DSF" requests <"$1.$t.lines" >requests
		# shellcheck disable=SC2086 # lists of options
		limited ds-prefill -m "$DS_MODEL" $2 requests >"$1.$t.kv" || return 1
		# shellcheck disable=SC2086 # lists of options
		limited ds-decode -m "$DS_MODEL" $3 "$1.$t.kv" >"$1.$t.answers" 2>"$1.err" || return 1
		"$PYTHON" "$TALK" next "$1.$t.lines" "$1.$t.answers" >"$1.$((t + 1)).lines" || return 1
		"$PYTHON" "$TALK" hits "$1.$t.answers" | awk '{ n += $3 } END { print n }'
	done
}

# same A B: two dialogues had the same answers, to the bit.
same() {
	local t
	for ((t = 1; t <= TURNS; t++)); do
		cmp "$1.$t.lines" "$2.$t.lines" && "$PYTHON" "$ANSWERS" table --no-hits "$1.$t.answers" >a &&
			"$PYTHON" "$ANSWERS" table --no-hits "$2.$t.answers" | cmp a - || return 1
	done
}

sum() {
	awk '{ n += $1 } END { print n }' "$1"
}

# stored DIR: every block of the store with the hash of its bytes.
stored() {
	"$PYTHON" "$TALK" blocks "$1"/*.seg
}

@test "each turn's prompt is found as far as it was a prompt before; the answers are those without a store" {
	for mtp in '' --mtp; do
		talks plain "$mtp --no-prefix-cache" '' >plain.hits
		[ "$(sort -u plain.hits)" = 0 ]
		# shellcheck disable=SC2086 # perhaps nothing
		talks kv "$mtp --kv dir:store$mtp" '' >kv.hits
		same plain kv
		for ((t = 2; t <= TURNS; t++)); do # at least the blocks that were complete in the turn before
			before=$("$PYTHON" "$TALK" hits "kv.$((t - 1)).answers" | awk '{ n += int(($2 - 1) / 64) * 64 } END { print n }')
			[ "$(sed -n "${t}p" kv.hits)" -ge "$before" ]
		done
	done
}

@test "--store-generated: answers hit, too; run again, chunked and batched otherwise: the same answers, the same bytes under the same keys" {
	[ "$TURNS" -le 4 ] || TURNS=4
	talks pure '--kv dir:pure' '' >pure.hits
	for mtp in '' mtp; do
		one='' two='' three=''
		[ -z "$mtp" ] || one=--mtp two='--mtp 2 --mtp-always' three='--mtp 4'
		rm -rf first second
		talks first "$one --kv dir:first" "$two --kv dir:first --store-generated" >first.hits
		talks second "$one --kv dir:second --chunk 33" "$three --kv dir:second --store-generated --max-batch 3 --kv-memory 4M" >second.hits
		same first second
		stored first >first.stored
		stored second | cmp first.stored -
		for ((t = 2; t <= TURNS; t++)); do # all but the last block or two of what the turn before ended with
			had=$("$PYTHON" "$TALK" hits "first.$((t - 1)).answers" | wc -l)
			long=$("$PYTHON" -c 'import json, sys; print(sum(len(json.loads(x)["ids"]) for x in open(sys.argv[1])))' "first.$t.lines")
			[ "$(sed -n "${t}p" first.hits)" -ge $((long - had * 64 * 3)) ]
		done
		[ "$(sum first.hits)" -gt "$(sum pure.hits)" ]
		# the dialogue again, all of it there: the same answers, nothing new in the store
		talks again "$one --kv dir:first" "$two --kv dir:first --store-generated" >again.hits
		same first again
		stored first | cmp first.stored -
		[ "$(head -n 1 again.hits)" -gt "$(head -n 1 first.hits)" ]
	done
}

@test "--no-generated: what decode made is left alone, and the answers are those without a store" {
	[ "$TURNS" -le 3 ] || TURNS=3
	talks plain '--no-prefix-cache' '' >/dev/null
	talks filling '--kv dir:store' '--kv dir:store --store-generated' >/dev/null
	talks left '--kv dir:store --no-generated' '' >left.hits
	same plain left
	talks taken '--kv dir:store' '' >taken.hits
	[ "$(sum left.hits)" -gt 0 ]
	[ "$(sum left.hits)" -lt "$(sum taken.hits)" ]
}

@test "--store-generated: without the prompt's keys nothing is stored, and without --kv it is refused" {
	refused 64 'says nothing without --kv' ds-decode -m "$DS_MODEL" --store-generated /dev/null
	TURNS=2
	talks plain '' '--kv dir:store --store-generated' >/dev/null
	[ "$(stored store | wc -l)" -eq 0 ]
	talks odd '--mtp --kv dir:other' '--kv dir:odd --store-generated' >/dev/null # other keys: with MTP, without
	[ "$(stored odd | wc -l)" -eq 0 ]
	same plain odd
	"$PYTHON" "$TALK" begin 4 | "$PYTHON" "$DSF" requests >asks
	limited ds-prefill -m "$DS_MODEL" asks | limited ds-decode -m "$DS_MODEL" --kv dir:none --store-generated 2>said >/dev/null
	[ "$(cat said)" = "ds-decode: --store-generated stores nothing: prompts come without their keys: give --kv to ds-prefill, too" ]
	limited ds-prefill -m "$DS_MODEL" --kv dir:other --kv-block 128 asks |
		limited ds-decode -m "$DS_MODEL" --kv dir:none --store-generated 2>said >/dev/null
	[ "$(wc -l <said)" -eq 1 ]
	has 'prompts come with other keys' <said
}

@test "--store-generated in ds-decode alone: prompts computed there, answers found by the next turn" {
	"$PYTHON" "$TALK" begin "$MANY" >lines
	for t in 1 2 3; do
		"$PYTHON" "$DSF" requests <lines | limited ds-decode -m "$DS_MODEL" --kv dir:store --store-generated >answers
		"$PYTHON" "$TALK" hits answers | awk '{ n += $3 } END { print n }' >>hits
		"$PYTHON" "$TALK" next lines answers >more
		mv more lines
	done
	[ "$(sed -n 3p hits)" -gt "$(sed -n 2p hits)" ]
}
