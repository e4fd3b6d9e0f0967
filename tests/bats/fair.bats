# ds-decode between clients: a request of many choices, long ones and long prompts hold nobody else up for their length.
load helper
load talk

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
}

teardown() {
	end_background
}

# The big request's connection is read by the same client afterwards: what it was sent meanwhile waits in the socket.
@test "a short request is done long before one of 128 choices that came first" {
	for options in '--max-batch 4 --batch-tokens 8 --chunk 4' '--max-batch 1 --batch-tokens 2 --chunk 1' '--max-batch 64' \
		"--max-batch 4 --kv-memory $((12 * BLOCK))" '--max-batch 4 --mtp 2 --mtp-always'; do
		echo "$options" >&2
		# shellcheck disable=SC2086 # a list
		serve $options --drain-timeout 0s
		talk '
big = Talk("d.sock")
big.ask("big", prompt(40), 60, n=128, sampling={"temperature": 1.0, "seed": 1})
next(big.frames())  # its hello; then its first token, so that it runs
for kind, stream, meta in big.frames():
    if kind == 5:
        break
small = Talk("d.sock")
small.ask("small", prompt(20, 3), 30)
tokens, done = small.answer("small")
assert len(tokens[0]) == 30 and done["finish_reason"] == "length", done
big.cancel("big")
tokens, done = big.answer("big")
assert sum(why == "cancelled" for why, _ in done["choices"]) > 64, done  # the first ones may have come to their end
made = done["usage"]["completion"]
assert made < 128 * 40, made
assert made > 30, made
'
		stop || [ $? -eq 75 ]
	done
}

@test "more requests than places: all go on, none waits for another's end" {
	for options in '--max-batch 2' '--max-batch 2 --mtp 1 --mtp-always'; do
		# shellcheck disable=SC2086 # a list
		serve $options
		talk '
clients = [Talk("d.sock") for i in range(7)]  # each may have one, however full it is
for i, t in enumerate(clients):
    t.ask("r%d" % i, prompt(10 + i), 400 if i < 6 else 20)
count(clients[6], "r6")
for i, t in enumerate(clients[:6]):
    t.cancel("r%d" % i)
made = [sum(count(t, "r%d" % i).values()) for i, t in enumerate(clients[:6])]
assert min(made) >= 10 and max(made) < 120, made
for t in clients:
    t.end()
'
		stop
	done
}

@test "a long prompt and running requests go on side by side, though they fill the batch" {
	serve --max-batch 2 --batch-tokens 10 --chunk 8
	talk '
run = Talk("d.sock")
run.ask("one", prompt(5), 3000)
run.ask("two", prompt(6), 3000)
for kind, stream, meta in run.frames():
    if kind == 5 and meta["index"] == 5:
        break
long = Talk("d.sock")
long.ask("long", prompt(800, 5), 5)
tokens, done = long.answer("long")
assert len(tokens[0]) == 5, done
run.cancel("one")
run.cancel("two")
made = [0, 0]
done = 0
for kind, stream, meta in run.frames():
    assert kind != 7, meta
    if kind == 6:
        made[done] = meta["usage"]["completion"]
        done += 1
        if done == 2:
            break
assert min(made) > 30 and max(made) < 1500, made
'
	stop || [ $? -eq 75 ]
}

@test "a short prompt behind many long ones" {
	serve --max-batch 16 --batch-tokens 32 --chunk 16 --stats --log-format json
	talk '
long = Talk("d.sock")
for i in range(8):
    long.ask("long%d" % i, prompt(3000, i), 2)
short = Talk("d.sock")
short.ask("short", prompt(10, 20), 2)
tokens, done = short.answer("short")
assert len(tokens[0]) == 2
for i in range(8):
    long.cancel("long%d" % i)
over = {}
for kind, stream, meta in long.frames():
    assert kind != 7, meta
    if kind == 6:
        over[meta["id"]] = meta
        if len(over) == 8:
            break
assert all(m["finish_reason"] == "cancelled" for m in over.values()), over
assert all(m["usage"]["hit"] + m["usage"]["miss"] == 3000 for m in over.values()), over
'
	stop || [ $? -eq 75 ]
	[ "$(tokens_in)" -lt 9000 ]
}

# With KV memory for three of them: who waits for it comes to its end, too, and gets the same answer.
@test "all of many end, with memory for few, in turns" {
	{
		for i in $(seq 12); do
			echo "{\"id\": \"r$i\", \"ids\": [$i, 5, 6, 7], \"max_tokens\": 250, \"ignore_eos\": true, \"n\": $((i % 3 + 1)), \"sampling\": {\"temperature\": 1.0, \"seed\": $i}}"
		done
	} | "$PYTHON" "$DS_ROOT/tests/bats/dsf.py" requests >r
	limited ds-decode -m "$DS_MODEL" r | "$PYTHON" "$DS_ROOT/tests/bats/answers.py" table --no-hits - >want
	[ "$(grep -c ' done ' want)" -eq 12 ]
	for options in "--max-batch 2 --kv-memory $((5 * BLOCK))" "--max-batch 64 --kv-memory $((5 * BLOCK))" "--max-batch 5 --kv-memory $((13 * BLOCK))"; do
		# shellcheck disable=SC2086 # a list
		limited ds-decode -m "$DS_MODEL" $options r | "$PYTHON" "$DS_ROOT/tests/bats/answers.py" table --no-hits - | cmp want -
	done
}
