# Output files: on disk before they get their name, under their name only when whole, and nothing left where that fails.
load helper

DSF=$DS_ROOT/tests/bats/dsf.py

setup_file() {
	cd "$BATS_FILE_TMPDIR" || return 1
	ds-model random --like "$DS_ROOT/tests/golden/v3-tiny-fp8" --layers 2 --dtype bf16 -o m
	printf '%s\n' '{"id": "a", "ids": [0, 1020, 494, 223, 21, 314, 223, 20, 16, 1021, 1022, 201], "max_tokens": 5}' |
		"$PYTHON" "$DSF" requests >request
	ds-prefill -m "$DS_MODEL" -o kv --dump 'layer.1.attn_out' --dump-to d request
	ds-frame pack -o t d
}

setup() {
	cd "$BATS_FILE_TMPDIR" || return 1
	T=$(cd "$BATS_TEST_TMPDIR" && pwd -P)
}

# traced OPTIONS COMMAND...: under strace, with options of it.
traced() {
	local options=$1
	shift
	not_sanitized "it does not run under strace"
	strace -o /dev/null true 2>/dev/null || skip "no strace, or it may not be used"
	# shellcheck disable=SC2086 # a list of options
	limited strace -f -y -o "$T/trace" $options "$@"
}

# writers DO: runs DO NAME COMMAND... for everything that makes a file or directory $T/NAME.
writers() {
	"$1" random ds-model random --like "$DS_ROOT/tests/golden/v3-tiny-fp8" --layers 2 --shard 2M -o "$T/random"
	"$1" fp8 ds-model quantise m "$T/fp8"
	"$1" prefill ds-prefill -m "$DS_MODEL" -o "$T/prefill" request
	"$1" decode ds-decode -m "$DS_MODEL" -o "$T/decode" kv
	"$1" dump ds-decode -m "$DS_MODEL" -o /dev/null --dump logits --dump-to "$T/dump" kv
	"$1" head ds-frame head -o "$T/head" kv
	"$1" pack ds-frame pack -o "$T/pack" d
	"$1" unpack ds-frame unpack -o "$T/unpack" t
}

# nothing NAME: neither it nor anything temporary of it is there.
nothing() {
	[ -z "$(find "$T" -maxdepth 1 -name "$1*")" ] || {
		ls "$T" >&2
		return 1
	}
}

@test "every file is synced before the rename, its directory after it" {
	synced() {
		local name=$1
		shift
		traced '-e trace=fsync,rename,renameat2' "$@"
		"$PYTHON" "$DS_ROOT/tests/bats/on_disk.py" "$T/trace" "$T/$name"
	}
	writers synced
	traced '-e trace=fsync,rename,renameat2' ds-model dequantise -f "$T/fp8" "$T/random"
	"$PYTHON" "$DS_ROOT/tests/bats/on_disk.py" "$T/trace" "$T/random"
	ds-model -q verify "$T/random"
	cd "$T"
	traced '-e trace=fsync,rename,renameat2' ds-frame head -o here prefill # in the directory we are in
	[ "$(grep -c 'fsync(.*= 0' trace)" -eq 2 ]
	grep -qE "fsync\([0-9]+<$T>\)" trace
}

@test "a sync that fails is 74 with one line, and leaves nothing" {
	failing() {
		local name=$1 error status
		shift
		for error in EIO ENOSPC; do
			status=0
			traced "-e inject=fsync:error=$error" "$@" 2>"$T/err" || status=$?
			check_refusal 74 "to disk: " "$status" "$T/err" "$*"
			nothing "$name"
		done
	}
	writers failing
}

@test "a file system that knows no sync is no error" {
	without() {
		local name=$1
		shift
		traced '-e inject=fsync:error=EINVAL' "$@"
		[ -e "$T/$name" ]
	}
	writers without
}

@test "the old model is there until its successor is on disk" {
	cp -r m "$T/m"
	local status=0
	# Two files and their directory; the fourth sync is of the directory in which that one lies.
	traced '-e inject=fsync:error=EIO:when=4' ds-model random --like "$DS_ROOT/tests/golden/v3-tiny-fp8" --layers 1 -f -o "$T/m" \
		2>"$T/err" || status=$?
	check_refusal 74 "to disk: " "$status" "$T/err" "random --force"
	run grep -h num_hidden_layers "$T/m/config.json" "$T"/m.tmp-*/config.json
	assert_line --index 0 --partial ': 1'
	assert_line --index 1 --partial ': 2'
}

@test "killed at the rename: nothing has the name" {
	killed() {
		local name=$1 status=0
		shift
		traced '-e inject=renameat2:signal=KILL' "$@" || status=$?
		[ "$status" -eq 137 ]
		[ ! -e "$T/$name" ]
		[ -n "$(find "$T" -maxdepth 1 -name "$name*")" ]
	}
	writers killed
}

@test "pipes and devices are written as they are; a full one is 74" {
	mkfifo "$T/fifo"
	for to in "$T/fifo" /dev/null; do
		[ "$to" = /dev/null ] || background cat "$T/fifo" >"$T/read"
		traced '-e trace=fsync,rename,renameat2' ds-frame head -o "$to" kv
		run grep -c 'sync\|rename' "$T/trace"
		assert_output 0
	done
	wait "$BG"
	ds-frame head kv | cmp - "$T/read"
	refused 74 "No space left on device" ds-frame head -o /dev/full kv
	refused 74 "No space left on device" ds-frame pack -o /dev/full d
	refused 74 "No space left on device" ds-decode -m "$DS_MODEL" -o /dev/full kv
}

@test "a directory that may not be written: 74 and its name" {
	mkdir "$T/ro"
	unshare -rm true 2>/dev/null || skip "no user namespaces"
	# shellcheck disable=SC2016 # the inner shell expands
	sealed() {
		local name=$1 status=0
		shift
		unshare -rm sh -c 'mount -t tmpfs -o ro none "$0" || exit 99; exec "$@"' "$T/ro" "${@/"$T/$name"/"$T/ro/$name"}" 2>"$T/err" ||
			status=$?
		[ "$status" -ne 99 ] || skip "no tmpfs can be mounted"
		check_refusal 74 "Read-only file system" "$status" "$T/err" "$*"
	}
	writers sealed
}

# It is written in place, so that the trace of a run that was killed is there.
@test "a trace is on disk when the run ends; where it cannot be: 74 and one line" {
	local status=0
	traced '-e trace=fsync' ds-decode -m "$DS_MODEL" -o /dev/null --trace "$T/spans" kv
	grep -qF "<$T/spans>) = 0" "$T/trace"
	traced '-e inject=fsync:error=EIO' ds-decode -m "$DS_MODEL" -o /dev/null --trace "$T/other" kv 2>"$T/err" || status=$?
	check_refusal 74 "to disk: " "$status" "$T/err" "a trace whose sync fails"
	traced '-e inject=fsync:error=EINVAL' ds-decode -m "$DS_MODEL" -o /dev/null --trace "$T/third" kv
}
