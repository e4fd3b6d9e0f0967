# For tests of a ds-decode that serves at d.sock: `load talk` behind `load helper`.

# shellcheck disable=SC2034 # for the tests
BLOCK=61440 # bytes of KV of 64 tokens of the example model

# talk CODE: Python with talk.py's Talk, prompt(n, seed) and count(talk, name).
talk() {
	limited "$PYTHON" - "$DS_ROOT/tests/bats" <<-END
		import sys
		sys.path.insert(0, sys.argv[1])
		import time
		from talk import Talk, count, prompt
		import dsf
		$1
	END
}

serve() {
	rm -f d.sock
	background ds-decode -m "$DS_MODEL" -l unix:d.sock "$@"
	SERVICE=$BG
	wait_socket d.sock
	PID=$(pgrep -P "$SERVICE" ds-decode)
}

# tokens_in: what a service with --stats --log-format json has computed, after its end.
tokens_in() {
	grep -o '"tokens_in":[0-9]*' "$BG_ERR" | cut -d: -f2
}

stop() {
	kill -TERM "$SERVICE"
	wait "$SERVICE"
}
