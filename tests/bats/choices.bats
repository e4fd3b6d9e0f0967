# Many answers to one prompt, and KV memory for little more than the prompt.
load helper

DSF=$DS_ROOT/tests/bats/dsf.py
ANSWERS=$DS_ROOT/tests/bats/answers.py
if [ -n "$DS_SANITIZE" ]; then N=20; else N=100; fi

setup_file() {
	cd "$BATS_FILE_TMPDIR" || return 1
	"$PYTHON" -c 'import json, sys
print(json.dumps({"id": "many", "ids": [5 + i * i % 400 for i in range(1000)], "n": int(sys.argv[1]), "max_tokens": 40,
	"ignore_eos": True, "sampling": {"temperature": 1.0}}))' "$N" | "$PYTHON" "$DSF" requests >requests
	limited ds-decode -m "$DS_MODEL" requests | "$PYTHON" "$ANSWERS" table --no-hits - >wanted
}

setup() {
	cd "$BATS_FILE_TMPDIR" || return 1
}

# peak COMMAND...: runs it and prints the most memory that it took, in KiB.
peak() {
	"$PYTHON" -c 'import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)' "$@"
}

# The prompt takes 16 blocks of 60 KiB; a hundred copies of it would be 94 MiB.
@test "answers wait for KV memory, and their prompt is parked once, not for each of them" {
	local ample scarce
	ample=$(peak ds-decode -m "$DS_MODEL" -j 1 -i requests -o ample)
	scarce=$(peak ds-decode -m "$DS_MODEL" -j 1 -i requests -o scarce --kv-memory 1200K)
	"$PYTHON" "$ANSWERS" table --no-hits scarce | cmp wanted -
	[ $((scarce - ample)) -lt 20000 ]
}

@test "the same handed over by ds-prefill, and with MTP" {
	limited ds-prefill -m "$DS_MODEL" --mtp requests >kv
	limited ds-decode -m "$DS_MODEL" --kv-memory 1600K --mtp 1 --mtp-always kv 2>/dev/null |
		"$PYTHON" "$ANSWERS" table --no-hits - | cmp wanted -
}
