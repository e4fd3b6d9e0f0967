# Who drafts, and when.
load helper

DSF=$DS_ROOT/tests/bats/dsf.py
ANSWERS=$DS_ROOT/tests/bats/answers.py

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
}

# While the third prompt is computed, steps have no room for drafts, for longer than hidden states are kept.
@test "answers that had no room for drafts for long draft again, and are the same" {
	"$PYTHON" -c 'import json
for name, prompt, most in ("a", 5, 90), ("b", 6, 90), ("c", 640, 1):
	print(json.dumps({"id": name, "ids": [5 + i * i % 400 for i in range(prompt)], "max_tokens": most, "ignore_eos": True}))' |
		"$PYTHON" "$DSF" requests >requests
	limited ds-decode -m "$DS_MODEL" requests >plain
	limited ds-decode -m "$DS_MODEL" --mtp 1 --mtp-always --max-batch 3 --chunk 16 --batch-tokens 1 requests >drafted
	cmp <("$PYTHON" "$ANSWERS" table --no-hits plain) <("$PYTHON" "$ANSWERS" table --no-hits drafted)
	steps=$("$PYTHON" "$ANSWERS" mtp drafted | cut -d ' ' -f 3)
	[ "$steps" -ge 40 ]
}
