# Loaded by every .bats file: `load helper` at its top.
#
# Tests run from the repository root ($DS_ROOT) with the programs under test in front of PATH.  Rules:
#  * a program that could hang runs under `timeout` (bats 1.8.2 does not end a child of `run`);
#  * a background job is started with `background`, which closes bats's descriptor 3;
#  * an expected failure is checked by its code, with `refused` or `run -CODE`.

bats_require_minimum_version 1.5.0
bats_load_library bats-support
bats_load_library bats-assert

DS_ROOT=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
cd "$DS_ROOT" || exit 1
: "${DS_BUILD:=build}"
case $DS_BUILD in /*) ;; *) DS_BUILD=$DS_ROOT/$DS_BUILD ;; esac
case $PATH in "$DS_BUILD/bin":*) ;; *) PATH=$DS_BUILD/bin:$PATH ;; esac
DS_MODEL=$DS_ROOT/examples/models/tiny-r1  # the example model (also the default of -m, where a test gives none)
: "${DS_SHARED:=$DS_ROOT/../shared}"       # data too big for the repository; may be absent
: "${DS_SANITIZE:=}"                       # address,undefined | thread | empty
PYTHON=/usr/bin/python3                    # has python3-msgpack
export DS_ROOT DS_BUILD PATH DS_MODEL DS_SHARED DS_SANITIZE PYTHON
set -o pipefail

# Under a sanitizer everything is slower.
if [ -n "$DS_SANITIZE" ]; then LIMIT=300; else LIMIT=60; fi

# golden NAME: prints the directory of the unpacked checkpoint tests/golden/NAME.
golden() {
	sh "$DS_ROOT/tests/unpack" "$1" "$DS_BUILD/golden/$1" >&2 && printf '%s\n' "$DS_BUILD/golden/$1"
}

# need_shared PATH...: skips the test where a file of the shared data is absent.
need_shared() {
	local f
	for f; do
		[ -e "$DS_SHARED/$f" ] || skip "shared data '$f' is not here"
	done
}

need_program() {
	local p
	for p; do
		command -v "$p" >/dev/null || skip "program '$p' is not here"
	done
}

# not_sanitized WHY: skips the test in a sanitizer build.
not_sanitized() {
	[ -z "$DS_SANITIZE" ] || skip "not with -fsanitize=$DS_SANITIZE: $1"
}

# has [OPTION...] PATTERN: grep -q that reads all of its input, so that under pipefail the writer is not ended by SIGPIPE.
has() {
	local all
	all=$(cat)
	grep -q "$@" <<<"$all"
}

# limited COMMAND...: under a time limit, so that a hang is a failure (124).
limited() {
	timeout -k 5 "$LIMIT" "$@"
}

# refused CODE TEXT COMMAND...: the command must exit with CODE and print exactly one line on stderr, which begins with the program's
# name and contains TEXT (a fixed string; may be empty).  Its stdin is that of the caller.
refused() {
	local want=$1 text=$2 err got=0
	shift 2
	err=$(mktemp "$BATS_TEST_TMPDIR/err.XXXXXX")
	limited "$@" >"$BATS_TEST_TMPDIR/refused.out" 2>"$err" || got=$?
	check_refusal "$want" "$text" "$got" "$err" "$*"
}

# check_refusal CODE TEXT STATUS FILE WHAT: the same for a command that ran already; FILE holds its stderr.
check_refusal() {
	local want=$1 text=$2 got=$3 err=$4 what=$5 lines
	lines=$(wc -l <"$err")
	if [ "$got" -ne "$want" ] || [ "$lines" -ne 1 ] || ! grep -q '^ds-[a-z]*: ' "$err" || ! grep -qF -- "$text" "$err"; then
		{
			echo "command:  $what"
			echo "exit:     $got, expected $want"
			echo "stderr:   $lines lines, expected 1 that begins with 'ds-x: ' and contains '$text':"
			head -n 20 "$err"
		} >&2
		return 1
	fi
}

# aligned FILE...: the data of these safetensors files begins at a multiple of 64 bytes, and each tensor at one of its element; prints
# how many tensors there are whose size is a multiple of 64 and whose place is not.
aligned() {
	"$PYTHON" - "$@" <<-'END'
		import json, struct, sys
		size = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "I64": 8, "U32": 4}
		loose = 0
		for path in sys.argv[1:]:
		    with open(path, "rb") as f:
		        n, = struct.unpack("<Q", f.read(8))
		        header = json.loads(f.read(n))
		    assert (8 + n) % 64 == 0, (path, n)
		    header.pop("__metadata__", None)
		    assert header, path
		    for name, t in header.items():
		        begin, end = t["data_offsets"]
		        assert begin % size[t["dtype"]] == 0, (path, name, begin)
		        loose += (end - begin) % 64 == 0 and begin % 64 != 0
		print(loose)
	END
}

# background COMMAND...: starts it with bats's descriptor closed; its pid is in $BG, its stderr in $BATS_TEST_TMPDIR/bg.N.err
# --foreground: a signal for $BG reaches the command once and alone.  Otherwise timeout sends SIGCONT behind it, which takes away the
# SIGSTOP that LeakSanitizer waits for in a program that ends just then: it hangs.
background() {
	BG_COUNT=$((${BG_COUNT:-0} + 1))
	BG_ERR=$BATS_TEST_TMPDIR/bg.$BG_COUNT.err
	timeout --foreground -k 30 "$LIMIT" "$@" 2>"$BG_ERR" 3>&- & # -k: also after a signal that it passes on
	BG=$!
	BG_ALL="${BG_ALL:-} $BG"
}

# end_background: for teardown; ends what a failed test left behind.
end_background() {
	local p
	for p in ${BG_ALL:-}; do
		kill "$p" 2>/dev/null || true
	done
	BG_ALL=
}

# wait_socket PATH: until a unix socket is there, ten seconds at most.
wait_socket() {
	local n=0
	while [ ! -S "$1" ]; do
		n=$((n + 1))
		[ "$n" -lt 200 ] || { echo "no socket '$1' after 10 s" >&2; return 1; }
		sleep 0.05
	done
}

# free_port: prints a TCP port on 127.0.0.1 that nobody listened on a moment ago.
free_port() {
	"$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
