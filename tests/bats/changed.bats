# A model's file that is cut, or written to, under a program that uses it: one line and 65, nothing half made, no answer of a mixture;
# and what a program takes that only just began.
load helper

CHANGED=$DS_ROOT/tests/bats/changed.py
DSF=$DS_ROOT/tests/bats/dsf.py

setup_file() {
	cd "$BATS_FILE_TMPDIR" || return 1
	for seed in 1 2; do
		ds-model random --like "$DS_ROOT/tests/golden/v3-tiny-fp8" --layers 2 --dtype bf16 --seed "$seed" -o "m$seed"
	done
	printf '%s\n' '{"id": "a", "ids": [0, 10, 49, 22, 21, 31], "max_tokens": 5}' | "$PYTHON" "$DSF" requests >request
	ds-prefill -m "$DS_MODEL" -o kv --dump 'layer.*' --dump-to d request
	ds-frame pack -o t d
}

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
	export PYTHONDONTWRITEBYTECODE=1
	F=$BATS_FILE_TMPDIR
	cp -r "$F/m1" m
}

# served CODE HOW: a ds-decode that serves ends with CODE after that; with one line where it is not 0.
served() {
	local status=0
	limited "$PYTHON" "$CHANGED" serve "$2" m "$F/m2" . 2>err || status=$?
	if [ "$1" -eq 0 ]; then
		[ "$status" -eq 0 ] || { cat err >&2; return 1; }
		[ ! -s err ]
	else
		check_refusal "$1" "'m/model.safetensors': it was cut or changed while in use" "$status" err "ds-decode, $2"
	fi
}

# cut FILE COMMAND...: the file is cut while the command, which strace makes slow, uses it: one line, 65.
cut() {
	local file=$1 status=0
	shift
	not_sanitized "it does not run under strace"
	strace -o /dev/null true 2>/dev/null || skip "no strace, or it may not be used"
	limited "$PYTHON" "$CHANGED" cut "$file" 20000 strace -f -o /dev/null -e inject=madvise,write,writev:delay_enter=60000 "$@" 2>err ||
		status=$?
	check_refusal 65 "$file': it was cut or changed while in use" "$status" err "$*"
}

@test "a service whose model is cut, or overwritten, says so and ends: 65" {
	for how in "cut" "cut a little" "half a copy" "another copied over it" "another written into it"; do
		rm -rf m
		cp -r "$F/m1" m
		served 65 "$how"
	done
}

# The fault: looking takes long, so a program looks now and then only, and answers of a mixture what is asked meanwhile.
@test "no answer is final that may be of a mixture, however seldom a program looks at its files" {
	not_sanitized "it does not run under strace"
	strace -o /dev/null true 2>/dev/null || skip "no strace, or it may not be used"
	for program in ds-decode ds-prefill; do
		local status=0
		rm -rf m sock
		cp -r "$F/m1" m
		limited "$PYTHON" "$CHANGED" late "$program" m "$F/m2" . 2>err || status=$?
		check_refusal 65 "'m/model.safetensors': it was cut or changed while in use" "$status" err "$program"
	done
}

@test "a service goes on where the bytes stay: the file touched, copied anew, replaced by a rename, removed" {
	for how in "touched" "the same copied over it" "replaced" "removed"; do
		rm -rf m
		cp -r "$F/m1" m
		served 0 "$how"
	done
}

@test "every program that reads a file while it is cut: 65, and nothing is left of its output" {
	cut m/model.safetensors ds-model verify m
	for c in "fingerprint --full m" "quantise m q" "info m"; do
		rm -rf m
		cp -r "$F/m1" m
		# shellcheck disable=SC2086 # words
		cut m/model.safetensors ds-model $c
	done
	rm -rf m
	cp -r "$F/m1" m
	cut m/model.safetensors ds-prefill -m m -o out --dump logits --dump-to dump "$F/request"
	cp "$F/t" t
	cut t ds-frame unpack -o out t
	run ls
	assert_output "$(printf '%s\n' err m t)"
}

@test "other SIGBUS is what it was" {
	not_sanitized "its own handler"
	mkfifo in
	background ds-prefill -m m -i in
	exec 9>in
	local n=0 child
	until child=$(pgrep -P "$BG") && grep -q model.safetensors "/proc/$child/maps"; do
		n=$((n + 1))
		[ "$n" -lt 200 ]
		sleep 0.05
	done
	kill -BUS "$child"
	local status=0
	wait "$BG" || status=$?
	exec 9>&-
	[ "$status" -eq 135 ]
}

@test "a step of one token takes the memory of one token, however large a step may be" {
	not_sanitized "its memory"
	"$PYTHON" - "$DS_MODEL" "$F/kv" <<-'END'
		import resource, subprocess, sys
		subprocess.run(["ds-decode", "-m", sys.argv[1], "-j", "2", "--batch-tokens", "65536", "-o", "/dev/null", sys.argv[2]], check=True)
		kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
		assert kib < 30 << 10, f"{kib} KiB"
	END
}
