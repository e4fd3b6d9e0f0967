# A rank that waits for somebody outside of its unit, a reader, a writer, a peer: the others do not wait for that.
load helper

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
	(cd "$DS_ROOT" && "$PYTHON" tests/bats/answers.py mix 4) | "$PYTHON" "$DS_ROOT/tests/bats/dsf.py" requests >few
	limited ds-decode -m "$DS_MODEL" -o few.want few
	"$PYTHON" "$DS_ROOT/tests/bats/dsf.py" tokens few.want >few.tokens
}

teardown() {
	end_background
}

# rank N OPTION...: of two.
rank() {
	local r=$1
	shift
	background ds-decode -m "$DS_MODEL" -j 1 --unit unix:u --rank "$r" --world 2 "$@"
}

# has_answered NAME: the rank that writes it has ended its part, the same answers as one process gives.
has_answered() {
	local n=0
	until [ -e "$1" ]; do
		n=$((n + 1))
		[ "$n" -lt 200 ] || { echo "no '$1' after 20 s" >&2; return 1; }
		sleep 0.1
	done
	"$PYTHON" "$DS_ROOT/tests/bats/dsf.py" tokens "$1" | cmp few.tokens -
}

# The fault: a pipe that is full holds up the whole unit, until somebody reads it.
@test "a rank whose answers nobody reads for a while" {
	"$PYTHON" -c '
import json
for i in range(64):
    print(json.dumps({"id": f"m{i}", "ids": [3, i + 3], "max_tokens": 100, "ignore_eos": True, "sampling": {"top_logprobs": 20}}))' |
		"$PYTHON" "$DS_ROOT/tests/bats/dsf.py" requests >much
	mkfifo answers
	rank 1 -i much -o answers
	one=$BG
	rank 0 -i few -o out.0
	exec 4<answers # there is a reader
	has_answered out.0
	cat <&4 >out.1
	exec 4<&-
	wait "$one"
	wait "$BG"
	[ "$(wc -c <out.1)" -gt 1500000 ] # more than a pipe holds
	[ "$("$PYTHON" "$DS_ROOT/tests/bats/dsf.py" tokens out.1 | grep -c ' done length ')" -eq 64 ]
}

# The fault: who waits for the other end of a pipe, or for a listener, has met the others already, who wait for it.
@test "a rank whose input nobody writes yet, whose output, dump, loads, trace nobody reads yet, whose peer does not listen yet" {
	local what
	for what in '-i late -o out.1' '-i few -o late' '-i few -o out.1 --loads-to late' '-i few -o out.1 --dump final --dump-to late' \
		'-i few -o out.1 --trace late -f' '-i few -c unix:late -o out.1'; do
		rm -f late out.*
		[[ $what == *unix:* ]] || mkfifo late
		# shellcheck disable=SC2086 # a list
		rank 1 $what
		one=$BG
		rank 0 -i few -o out.0
		has_answered out.0
		case $what in
		'-i late'*) cat few >late ;;
		*late*unix* | *unix:late*) background ds-decode -m "$DS_MODEL" -l unix:late -o other ;;
		*) limited cat late >other ;;
		esac
		wait "$one" || [[ $what == *unix:* ]]
	done
}

# The fault: a timer that goes off again at once, for as long as nobody reads.
@test "a rank whose loads nobody reads any more: no CPU is used to find that out" {
	local pid before r
	mkfifo loads
	for r in 0 1; do
		local more=()
		[ "$r" -eq 0 ] || more=(--loads-to loads --load-interval 0)
		rank "$r" -l unix:d.%r --peer-timeout 5s "${more[@]}"
		one=$BG
	done
	exec 4<loads
	wait_socket d.1
	pid=$(pgrep -P "$one" ds-decode)
	limited ds-token -m "$DS_MODEL" encode --ignore-eos --max-tokens 300 -c unix:d.1 <<<'1 + 1' >answer # more than a pipe holds
	before=$(awk '{ print $14 + $15 }' "/proc/$pid/stat")
	sleep 2
	[ $(($(awk '{ print $14 + $15 }' "/proc/$pid/stat") - before)) -le 8 ] # of 10 ms
	exec 4<&-
}
