# Stop strings: whatever way their bytes lie over the tokens, the text ends right before them, and what is shown early is never taken
# back.  The answers without stop strings are known; substrings of them at all offsets are the stop strings.
load helper

STOPPING=$DS_ROOT/tests/bats/stopping.py
ANSWERS=$DS_ROOT/tests/bats/answers.py

# Every N-th request only, where everything is slow.
if [ -n "$DS_SANITIZE" ]; then EVERY=29; else EVERY=1; fi

encode() {
	ds-token -m "$DS_MODEL" encode --jsonl
}

setup_file() {
	cd "$BATS_FILE_TMPDIR" || return 1
	"$PYTHON" "$STOPPING" known | encode | limited ds-decode -m "$DS_MODEL" | ds-token -m "$DS_MODEL" decode --jsonl >texts
	"$PYTHON" "$STOPPING" requests texts | sed -n "1~${EVERY}p" >requests
	"$PYTHON" "$STOPPING" expect texts requests >want
	encode <requests >stream
	limited ds-decode -m "$DS_MODEL" stream >out
}

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
	ln -s "$BATS_FILE_TMPDIR"/{texts,requests,want,stream,out} .
}

@test "the text of each choice ends right before the stop string, at all offsets and lengths, in English and Chinese" {
	[ "$(wc -l <requests)" -gt $((1000 / EVERY)) ]
	ds-token -m "$DS_MODEL" decode --jsonl <out >answers
	"$PYTHON" "$STOPPING" got answers >got
	cmp want got
}

@test "text that streams is the same" {
	ds-token -m "$DS_MODEL" decode --separator '\0' <out | sort -z >got
	"$PYTHON" -c '
import json, sys
for line in open("want"):
    sys.stdout.buffer.write(json.loads(line)[2].encode() + b"\0")
' | sort -z >shown
	cmp shown got
}

@test "at no time more is held back than may begin a stop string, and nothing is shown that is cut later" {
	not_sanitized 'too few of the requests are run'
	"$PYTHON" "$STOPPING" frames texts requests "$DS_MODEL" out
}

@test "with MTP, from ds-prefill, and one at a time: the same frames" {
	not_sanitized 'it takes long, and law2.bats has stop strings, too'
	sed -n '1~5p' requests | encode >some
	limited ds-decode -m "$DS_MODEL" --max-batch 1 some | "$PYTHON" "$ANSWERS" table --no-hits - >one
	limited ds-decode -m "$DS_MODEL" --mtp 4 --mtp-always some 2>/dev/null | "$PYTHON" "$ANSWERS" table --no-hits - | cmp one -
	limited ds-prefill -m "$DS_MODEL" some | limited ds-decode -m "$DS_MODEL" | "$PYTHON" "$ANSWERS" table --no-hits - | cmp one -
}
