# ds-decode with requests of several choices, cancels, clients that do not read, little memory, the context's end and odd options.
load helper
load talk

DSF=$DS_ROOT/tests/bats/dsf.py
ANSWERS=$DS_ROOT/tests/bats/answers.py
if [ -n "$DS_SANITIZE" ]; then
	ENDS=4095 BORDERS='63 64 192'
else
	ENDS='4000 4031 4032 4090 4094 4095 4096' BORDERS='1 2 63 64 65 127 128 129 192'
fi

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
}

teardown() {
	end_background
}

# requests: JSON lines of {id, len, max, ...} as a stream; prompts are made of len, ids are given or not.
requests() {
	"$PYTHON" -c '
import json, sys
for line in sys.stdin:
    r = json.loads(line)
    n = r.pop("len")
    r["ids"] = [(7 * t + 13 * r.pop("seed", 0)) % 1000 + 3 for t in range(n)] if n else [5]
    r["max_tokens"] = r.pop("max", 0)
    print(json.dumps({"ignore_eos": True, **r}))
' | "$PYTHON" "$DSF" requests
}

table() {
	"$PYTHON" "$ANSWERS" table --no-hits "$@"
}

decode() {
	limited ds-decode -m "$DS_MODEL" "$@"
}

@test "more choices than --max-batch, than KV blocks, up to 128: the same answers" {
	{
		echo '{"id": "many", "len": 100, "max": 30, "n": 20, "sampling": {"temperature": 1.0, "seed": 5}}'
		echo '{"id": "full", "len": 64, "max": 6, "n": 128, "sampling": {"temperature": 1.3, "seed": 6}}'
		echo '{"id": "same", "len": 130, "max": 70, "n": 3}'
		echo '{"id": "one", "len": 10, "max": 5}'
	} | requests >r
	decode --max-batch 128 r >out
	table out >want
	[ "$(grep -c '^many token' want)" -eq 600 ]
	[ "$(grep -c '^full token' want)" -eq 768 ]
	for options in '--max-batch 4' '--max-batch 1' "--kv-memory $((4 * BLOCK))" "--kv-memory $((5 * BLOCK)) --max-batch 3" \
		'--mtp 3 --mtp-always --max-batch 7' '--mtp 2 --mtp-always --kv-memory 400000'; do
		# shellcheck disable=SC2086 # a list
		decode $options r 2>/dev/null | table - | cmp want -
	done
	limited ds-prefill -m "$DS_MODEL" r | decode --kv-memory $((4 * BLOCK)) | table - | cmp want -
	# choices are answers of their own; greedy ones are all alike
	"$PYTHON" -c '
import json, sys
tokens = {}
for line in open("want"):
    name, kind, text = line.split(" ", 2)
    t = json.loads(text)
    if kind == "token":
        tokens.setdefault((name, t.get("choice", 0)), []).append(t["id"])
assert len({tuple(v) for k, v in tokens.items() if k[0] == "many"}) > 15
assert len({tuple(v) for k, v in tokens.items() if k[0] == "same"}) == 1
'
}

@test "a cancel ends all choices with what they have, once; others go on" {
	for options in '' '--max-batch 2' '--mtp 2 --mtp-always' "--kv-memory $((6 * BLOCK))"; do
		rm -f d.sock
		# shellcheck disable=SC2086 # a list
		serve $options
		talk '
t = Talk("d.sock")
t.ask("big", prompt(70), 3000, n=5, sampling={"temperature": 1.0, "seed": 1})
t.ask("small", prompt(10), 50)
counts, got = {}, {}
for kind, stream, meta in t.frames():
    if kind == 5:
        key = (stream, meta.get("choice", 0))
        assert meta["index"] == counts.get(key, 0), meta
        counts[key] = meta["index"] + 1
        if sum(counts.values()) == 100:
            t.cancel("big")
            t.ask("late", prompt(20), 7)
            t.end()
    if kind in (6, 7):
        assert kind == 6 and meta["id"] not in got, meta
        got[meta["id"]] = (stream, meta)
stream, big = got["big"]
assert big["finish_reason"] == "cancelled" and [c[0] for c in big["choices"]] == ["cancelled"] * 5, big
assert [c[1] for c in big["choices"]] == [counts.get((stream, c), 0) for c in range(5)], (big, counts)
assert big["usage"]["completion"] == sum(c[1] for c in big["choices"])
assert got["small"][1]["usage"]["completion"] == 50 and got["late"][1]["usage"]["completion"] == 7
'
		stop
	done
}

@test "a cancel while the prompt is computed, or waits" {
	serve --max-batch 2 --chunk 8 --stats --log-format json
	talk '
t = Talk("d.sock")
t.ask("a", prompt(4000), 5, n=3)
t.cancel("a")
tokens, done = t.answer("a")
assert not tokens and done["finish_reason"] == "cancelled" and done["usage"]["completion"] == 0, done
assert done["usage"] == {"prompt": 4000, "hit": 0, "miss": 4000, "completion": 0}, done
t.ask("b", prompt(30), 3)
assert t.answer("b")[1]["usage"] == {"prompt": 30, "hit": 0, "miss": 30, "completion": 3}
t.end()
'
	stop
	[ "$(tokens_in)" -lt 4000 ]
}

@test "a choice that all of --kv-memory could not hold fails its request, once, and no other" {
	serve --kv-memory $((2 * BLOCK))
	talk '
t = Talk("d.sock")
t.ask("grows", prompt(100), 100, n=4, sampling={"temperature": 1.0, "seed": 2})
t.ask("fits", prompt(100), 20, n=2)
answers = {}
t.end()
for kind, stream, meta in t.frames():
    if kind in (6, 7):
        assert meta["id"] not in answers
        answers[meta["id"]] = (kind, meta)
assert answers["grows"][0] == 7 and "does not fit in --kv-memory (2 blocks" in answers["grows"][1]["message"], answers
assert answers["fits"][0] == 6 and answers["fits"][1]["usage"]["completion"] == 40, answers
'
	stop
}

@test "a client that does not read its answers keeps no KV memory from others" {
	not_sanitized 'it takes long until its queue is full'
	serve --kv-memory $((12 * BLOCK)) --peer-timeout 59s
	talk "pid = $PID"'
deaf = Talk("d.sock")
deaf.ask("deaf", prompt(60), 600, n=128, sampling={"temperature": 1.0, "seed": 1, "top_logprobs": 20})
def cpu():
    return sum(map(int, open(f"/proc/{pid}/stat").read().split()[13:15]))
before = -1
while cpu() != before:  # until its queue is full and nothing runs any more
    before = cpu()
    time.sleep(0.7)
good = Talk("d.sock")
good.ask("large", prompt(640, 3), 20, n=2)
tokens, done = good.answer("large")
assert done["usage"]["completion"] == 40
good.end()
'
	stop || [ $? -eq 75 ]
}

@test "the context's end: prompts up to its last token, with and without MTP, several choices" {
	for at in $ENDS; do
		echo "{\"id\": \"to$at\", \"len\": $at}"
		echo "{\"id\": \"n$at\", \"len\": $at, \"n\": 3, \"sampling\": {\"temperature\": 1.0, \"seed\": 3}}"
	done | requests >r
	decode r >out
	table out >want
	"$PYTHON" -c '
import json
for line in open("want"):
    name, kind, text = line.split(" ", 2)
    d = json.loads(text)
    if kind == "done":
        n, at = (3 if name[0] == "n" else 1), int(name.lstrip("ton"))
        assert d["finish_reason"] == "length" and d["usage"]["completion"] == n * (4096 - at + 1), d
'
	for n in 1 8; do
		decode --mtp "$n" --mtp-always r 2>/dev/null | table - | cmp want -
	done
	limited ds-prefill -m "$DS_MODEL" --mtp r | decode --mtp 8 --mtp-always 2>/dev/null | table - | cmp want -
	echo '{"id": "over", "len": 4097}' | requests >over
	refused 65 'longer than the model' ds-decode -m "$DS_MODEL" over
}

# Drafts at every border: of blocks, of budgets, of answers.
@test "odd options give the same answers: tiny budgets, 8 drafts for 1 to 3 tokens, prompts at the borders of blocks, exact memory" {
	for at in $BORDERS; do
		for max in 1 2 3 66; do
			echo "{\"id\": \"p$at.$max\", \"len\": $at, \"max\": $max}"
		done
		echo "{\"id\": \"n$at\", \"len\": $at, \"max\": 3, \"n\": 2, \"sampling\": {\"temperature\": 0.8, \"seed\": 1}}"
	done | requests >r
	decode r >out
	table out >want
	[ "$(grep -c ' done ' want)" -eq "$(wc -w <<<"$BORDERS $BORDERS $BORDERS $BORDERS $BORDERS")" ]
	for options in '--max-batch 1 --batch-tokens 1 --chunk 1' '--max-batch 1 --batch-tokens 1 --chunk 1 --mtp 8 --mtp-always' \
		"--kv-memory $((5 * BLOCK))" '--max-batch 64 --batch-tokens 1 --chunk 1 --mtp 1 --mtp-always' \
		"--kv-memory $((5 * BLOCK * 4 / 3)) --mtp 8 --mtp-always" "--kv-memory $((6 * BLOCK * 4 / 3)) --mtp 4 --max-batch 3" \
		'--max-batch 45 --batch-tokens 46 --chunk 2 --mtp 8 --mtp-always' '--mtp 8 --mtp-always --max-batch 64 --batch-tokens 512'; do
		echo "$options" >&2
		# shellcheck disable=SC2086 # a list
		decode $options r 2>/dev/null | table - | cmp want -
	done
}

@test "MTP that cannot be: a model without the layer, KV that came without" {
	local model
	model=$(golden v3-tiny)
	refused 78 "has no MTP layer" ds-decode -m "$model" --mtp 1 /dev/null
	refused 78 "has no MTP layer" ds-prefill -m "$model" --mtp /dev/null
	refused 64 "--mtp" ds-decode -m "$DS_MODEL" --mtp 9 /dev/null
	refused 64 "without --mtp" ds-decode -m "$DS_MODEL" --mtp-always /dev/null
	echo '{"id": "a", "len": 100, "max": 9}' | requests >r
	limited ds-prefill -m "$DS_MODEL" r >kv
	refused 76 "give --mtp to ds-prefill, too" ds-decode -m "$DS_MODEL" --mtp 1 kv
	limited ds-prefill -m "$DS_MODEL" --mtp r >kv.mtp
	decode kv.mtp | table - >got
	decode kv | table - | cmp got -
}
