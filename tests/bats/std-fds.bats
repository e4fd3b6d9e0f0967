# Programs that are started without descriptor 0, 1 or 2: what they open next is not read as input or written into.
load helper

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
	echo 'What is 17 + 25?' | ds-token -m "$DS_MODEL" encode --chat >request
	limited ds-decode -m "$DS_MODEL" request >token
	tokens token >want
}

teardown() {
	end_background
}

tokens() {
	"$PYTHON" "$DS_ROOT/tests/bats/dsf.py" tokens "$1"
}

# without CLOSED COMMAND...: CLOSED are redirections.
without() {
	local closed=$1
	shift
	limited sh -c 'exec "$@" '"$closed" - "$@"
}

# no_input COMMAND...
no_input() {
	local closed
	for closed in '<&-' '<&- >&-'; do
		refused 66 "cannot read '<stdin>': Bad file descriptor" sh -c 'exec "$@" '"$closed" - "$@"
	done
}

# no_output COMMAND...
no_output() {
	local closed
	for closed in '>&-' '<&- >&-'; do
		refused 74 'Bad file descriptor' sh -c 'exec "$@" '"$closed" - "$@"
	done
}

@test "a closed stdin: 66" {
	no_input ds-prefill -m "$DS_MODEL"
	no_input ds-decode -m "$DS_MODEL"
	no_input ds-token -m "$DS_MODEL" encode
	no_input ds-token -m "$DS_MODEL" encode --jsonl
	no_input ds-token -m "$DS_MODEL" decode
	no_input ds-frame dump
	no_input ds-frame filter -t token
}

@test "a closed stdout: 74" {
	no_output ds-prefill -m "$DS_MODEL" -i request
	no_output ds-decode -m "$DS_MODEL" -i request
	no_output ds-token -m "$DS_MODEL" encode -i "$DS_MODEL/config.json"
	no_output ds-token -m "$DS_MODEL" decode -i token
	no_output ds-frame dump token
	no_output ds-model info "$DS_MODEL"
	no_output ds-model --help
}

@test "a closed stderr, or all three: what is said goes nowhere, not into a file" {
	local closed
	for closed in '2>&-' '<&- >&- 2>&-'; do
		rm -f out kv
		without "$closed" ds-decode -v -m "$DS_MODEL" -i request -o out
		tokens out | cmp want -
		without "$closed" ds-prefill -v -m "$DS_MODEL" -i request -o kv
		limited ds-decode -m "$DS_MODEL" kv | tokens - | cmp want -
		run -66 without "$closed" ds-decode -m "$DS_MODEL" -i none -o out
		run -65 without "$closed" ds-frame check "$DS_MODEL/config.json"
		run -66 without "$closed" ds-model info none
		run -66 without "$closed" ds-token -m "$DS_MODEL" decode -i none
	done
}

# The fault: its input was the epoll descriptor of the unit's connections, and everybody waited.
@test "a rank without stdin ends with 66, one without stdout with 74; the other goes on" {
	local case closed code over said status
	for over in unix:u "tcp:127.0.0.1:$(free_port)"; do
		for case in '66 <&-' '74 -i request >&-' '66 <&- >&-'; do
			code=${case%% *}
			rm -f out
			background sh -c 'exec "$@" '"${case#* }" - ds-decode -m "$DS_MODEL" -j 1 --unit "$over" --rank 1 --world 2
			closed=$BG said=$BG_ERR
			background ds-decode -m "$DS_MODEL" -j 1 --unit "$over" --rank 0 --world 2 -i request -o out
			status=0
			wait "$closed" || status=$?
			[ "$status" -eq "$code" ]
			grep -q '^ds-decode: cannot .*: Bad file descriptor' "$said"
			wait "$BG"
			tokens out | cmp want -
		done
	done
}
