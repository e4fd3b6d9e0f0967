# The example model's exam: 300 problems through the programs, speculating with the MTP layer.  The answer is what stands behind
# </think>, word for word.
load helper

EVAL=$DS_ROOT/tests/golden/eval
ANSWERS=$DS_ROOT/tests/bats/answers.py

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
	not_sanitized 'the exam takes long and is about answers'
}

# sit WEIGHTS MODEL: skill by skill not more than one answer below the share that the reference solves, on the whole not more than a
# point; of the drafts at least 99 % are the model's next token (the reference: bf16 99.84 %, fp8 99.83 %).
sit() {
	# shellcheck disable=SC2034 # `limited` reads it
	LIMIT=150
	limited ds-token -m "$2" encode --jsonl --ignore answer,skill,language <"$EVAL/problems.jsonl" | limited ds-prefill -m "$2" --mtp |
		limited ds-decode -m "$2" --mtp 1 --mtp-always 2>said >stream
	ds-token -m "$2" decode --jsonl <stream >answers
	"$PYTHON" "$DS_ROOT/tests/bats/judge.py" exam "$1" "$EVAL/problems.jsonl" answers
	read -r drafted accepted _ < <("$PYTHON" "$ANSWERS" mtp stream)
	grep "mtp: $accepted of $drafted drafts accepted (99\.[0-9] %)" said
	[ $((accepted * 1000)) -ge $((drafted * 990)) ]
	# every token but the first of each answer and those of the few steps without drafts
	[ "$drafted" -gt "$(($(ds-frame dump stream | grep -c '"type":"token"') * 2 / 5))" ]
}

@test "FP8 weights: accuracy of each skill, acceptance of drafts" {
	sit fp8 "$DS_MODEL"
}

@test "BF16 weights: accuracy of each skill, acceptance of drafts" {
	need_shared models/tiny-r1-bf16
	sit bf16 "$DS_SHARED/models/tiny-r1-bf16"
}
