# ds-token: what sampling offers, from its options and JSON keys into frames, through the engine, and back to text.
load helper
load token

# meta: the meta of the one request of stdin, less what every request has.
meta() {
	requests | "$PYTHON" -c '
import json, sys
m = json.loads(sys.stdin.read())["meta"]
print(json.dumps({**m.pop("sampling"), **m}, sort_keys=True))'
}

# ask [OPTION...]: the tokens of an answer to "a b c", as judged by python3-msgpack: "r0 index id logprob" lines.
ask() {
	echo 'a b c' | token encode --chat --logprobs "$@" | limited ds-prefill -m "$DS_MODEL" -j 1 | limited ds-decode -m "$DS_MODEL" -j 1 >answer.frames &&
		"$PYTHON" "$DSF" tokens answer.frames
}

@test "encode: every sampling option is in the frame; neutral values are what nothing says" {
	echo x | token encode --min-p 0.05 --repetition-penalty 1.1 --presence-penalty -0.5 --frequency-penalty 2 --logit-bias 7=-100 --logit-bias 5=1.5 \
		--stop 'END' --stop $'\n\n' --top-logprobs 3 --n 4 --seed 1 --stop-id 9 >frames
	ds-frame check -q frames
	meta <frames >got
	run -0 "$PYTHON" -c '
import json
m = json.load(open("got"))
assert m == {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": 1, "logprobs": True, "min_p": 0.05, "repetition_penalty": 1.1,
             "presence_penalty": -0.5, "frequency_penalty": 2.0, "logit_bias": [[5, 1.5], [7, -100.0]], "top_logprobs": 3, "max_tokens": 0,
             "stop_ids": [9], "stop": ["END", "\n\n"], "ignore_eos": False, "n": 4}, m'
	echo x | token encode --min-p 0 --repetition-penalty 1 --presence-penalty 0 --frequency-penalty 0 --top-logprobs 0 --n 1 --top-k 0 --top-p 1 | meta |
		cmp - <(echo x | token encode | meta)
}

@test "encode --jsonl: the keys of the OpenAI API and vLLM; null and neutral values are what nothing says" {
	tr -d '\n' >line <<-'END'
		{"prompt": "x", "min_p": 0.05, "repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": -2, "logit_bias": {"7": -100, "5": 1.5},
		"stop": ["a", "好"], "stop_token_ids": [3], "logprobs": true, "top_logprobs": 5, "n": 2, "seed": 3, "max_completion_tokens": 6, "ignore_eos": true}
	END
	token encode --jsonl <line | meta >got
	run -0 "$PYTHON" -c '
import json
m = json.load(open("got"))
assert m == {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": 3, "logprobs": True, "min_p": 0.05, "repetition_penalty": 1.5,
             "presence_penalty": 0.5, "frequency_penalty": -2.0, "logit_bias": [[5, 1.5], [7, -100.0]], "top_logprobs": 5, "max_tokens": 6,
             "stop_ids": [3], "stop": ["a", "好"], "ignore_eos": True, "n": 2}, m'
	tr -d '\n' >neutral <<-'END'
		{"prompt": "x", "min_p": 0, "repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "stop": [], "n": 1,
		"top_logprobs": 0, "logprobs": false, "top_k": -1, "temperature": 0, "top_p": 1, "stop_token_ids": [], "max_tokens": 0, "ignore_eos": false}
	END
	tr -d '\n' >null <<-'END'
		{"prompt": "x", "min_p": null, "repetition_penalty": null, "presence_penalty": null, "frequency_penalty": null, "logit_bias": null, "stop": null,
		"n": null, "top_logprobs": null, "logprobs": null, "top_k": null, "temperature": null, "top_p": null, "seed": null, "stop_token_ids": null,
		"max_tokens": null, "max_completion_tokens": null, "ignore_eos": null, "user": null}
	END
	for f in neutral null; do
		token encode --jsonl <$f | meta | cmp - <(echo x | token encode | meta)
	done
	# One text is a list of one; a number of logprobs is that of completions; the key goes before the option, all of it.
	echo '{"prompt": "x", "stop": "END", "logprobs": 4}' | token encode --jsonl --stop other | meta >got
	has '"logprobs": true.*"stop": \["END"\].*"top_logprobs": 4' <got
	echo '{"prompt": "x", "logprobs": false, "stop": [], "logit_bias": {"3": 1}}' | token encode --jsonl --stop other --top-logprobs 3 --logit-bias 5=1 | meta >got
	has '"logit_bias": \[\[3, 1.0\]\], "logprobs": false, "max_tokens": 0, "seed"' <got
	echo '{"prompt": "x", "top_logprobs": 1}' | token encode --jsonl | meta | has '"logprobs": true'
	echo '{"prompt": "x", "n": null, "stop": null}' | token encode --jsonl --stop other --n 3 | meta | has '"n": 3.*"stop": \["other"\]'
}

@test "encode: bad values of options: 64 and the option" {
	while read -r option value; do
		refused 64 "--${option%%|*}" ds-token -m "$DS_MODEL" encode "--$option" "$value" </dev/null || return 1
	done <<-'END'
		min-p 1.1
		min-p -0.1
		repetition-penalty 0
		repetition-penalty 10.1
		presence-penalty 2.1
		frequency-penalty -2.1
		logit-bias 5
		logit-bias =5
		logit-bias x=5
		logit-bias 5=
		logit-bias 5=101
		logit-bias 4294967296=1
		top-logprobs 21
		n 0
		n 129
		n 1.5
	END
	refused 64 '--stop' ds-token -m "$DS_MODEL" encode --stop '' </dev/null
	refused 64 '--stop' ds-token -m "$DS_MODEL" encode --stop $'\xff' </dev/null
	refused 64 '--stop' ds-token -m "$DS_MODEL" encode --stop "$(printf '%0257d' 0)" </dev/null
	# shellcheck disable=SC2046 # a list of words
	refused 64 '--stop' ds-token -m "$DS_MODEL" encode $(printf -- '--stop %s ' {1..17}) </dev/null
	refused 64 '--logit-bias' ds-token -m "$DS_MODEL" encode --logit-bias 5=1 --logit-bias 5=2 </dev/null
	refused 64 '--separator' ds-token -m "$DS_MODEL" decode --separator '\x' </dev/null
	refused 64 '--separator' ds-token -m "$DS_MODEL" decode --separator "a\\" </dev/null
	refused 64 '--separator' ds-token -m "$DS_MODEL" decode --jsonl --separator , </dev/null
}

@test "an option of another sub-command: 64 and both names, wherever it stands" {
	refused 64 "'decode' does not take --stop" ds-token -m "$DS_MODEL" decode --stop x </dev/null
	refused 64 "'decode' does not take --temperature" ds-token -m "$DS_MODEL" --temperature 0 decode </dev/null
	refused 64 "'decode' does not take --lines" ds-token -m "$DS_MODEL" decode --lines </dev/null
	refused 64 "'encode' does not take --special" ds-token -m "$DS_MODEL" encode --special </dev/null
	refused 64 "'encode' does not take --separator" ds-token -m "$DS_MODEL" encode --separator x </dev/null
	refused 64 "'tokens' does not take --jsonl" ds-token -m "$DS_MODEL" tokens --jsonl </dev/null
	refused 64 "'render' does not take --n" ds-token -m "$DS_MODEL" render --n 2 </dev/null
	printf x | token tokens --chat >/dev/null
}

@test "logit bias, penalties, min-p and top-k work through prefill and decode, from the first token on" {
	ask --max-tokens 8 >greedy
	first=$(awk '$2 == 0 { print $3 }' greedy)
	# 100 outweighs everything: this token at every place, the first one too; -100 keeps one out.
	[ "$(ask --max-tokens 8 --logit-bias 777=100 | awk '$2 != "done" { print $3 }' | sort -u)" = 777 ]
	ask --max-tokens 8 --logit-bias "$first=-100" >banned
	run -1 awk -v t="$first" '$2 != "done" && $3 == t { found = 1 } END { exit !found }' banned
	# Its log-probability is the model's own, before the bias.
	[ "$(ask --max-tokens 1 --logit-bias "$first=100" | head -n 1)" = "$(head -n 1 greedy)" ]
	# What was said is hardly said again, though a bias asks for it.
	ask --max-tokens 8 --logit-bias 777=30 --presence-penalty 2 --frequency-penalty 2 --repetition-penalty 10 >penalised
	[ "$(awk '$2 != "done" { print $3 }' penalised | uniq -d | wc -l)" -eq 0 ]
	# The prompt counts for the repetition penalty: its tokens are favoured by one below 1.
	ask --max-tokens 1 --repetition-penalty 0.01 >favoured
	echo 'a b c' | token tokens --chat | cut -f 1 | has -x "$(awk 'NR == 1 { print $3 }' favoured)"
	# A draw with one candidate is greedy.
	for cut in '--min-p 1' '--top-k 1' '--top-p 0.000001'; do
		# shellcheck disable=SC2086 # two words
		ask --max-tokens 8 --temperature 1 --seed 5 $cut | cmp - greedy
	done
	ask --max-tokens 8 --temperature 3 --seed 5 >hot
	run -1 cmp hot greedy
	ask --max-tokens 8 --temperature 3 --seed 5 | cmp - hot
}

@test "law 2: sampled requests in one batch and each alone give the same bits" {
	"$PYTHON" >lines -c '
import json
kinds = [{"temperature": 1.5, "min_p": 0.01}, {"temperature": 1, "top_p": 0.9, "repetition_penalty": 1.3}, {"frequency_penalty": 1.5},
         {"temperature": 0.8, "presence_penalty": 2, "top_k": 20}, {"logit_bias": {"300": 3, "5": -100}, "temperature": 2},
         {"repetition_penalty": 0.5, "temperature": 1.1, "frequency_penalty": 0.5, "presence_penalty": -1, "min_p": 0.001, "top_p": 0.95}]
for i in range(18):
    print(json.dumps({"id": f"q{i}", "messages": [{"role": "user", "content": "Say something. " * (1 + i % 4)}], "seed": i % 7,
                      "max_tokens": 12 + i, "ignore_eos": True, "top_logprobs": i % 3, "logprobs": True, **kinds[i % len(kinds)]}))'
	token encode --jsonl <lines >all.frames
	limited ds-prefill -m "$DS_MODEL" -j 2 -i all.frames | limited ds-decode -m "$DS_MODEL" -j 2 | "$PYTHON" "$DSF" tokens - | sort >together
	while read -r line; do
		token encode --jsonl <<<"$line" | limited ds-prefill -m "$DS_MODEL" -j 1 | limited ds-decode -m "$DS_MODEL" -j 1 | "$PYTHON" "$DSF" tokens -
	done <lines | sort >alone
	[ "$(wc -l <together)" -gt 300 ]
	cmp together alone
}

@test "top logprobs: the likeliest tokens in OpenAI's shape, of the model's own distribution" {
	echo 'a b c' | token encode --chat --top-logprobs 20 --max-tokens 6 --temperature 1 --seed 3 --presence-penalty 1 | limited ds-prefill -m "$DS_MODEL" |
		limited ds-decode -m "$DS_MODEL" | token decode --jsonl >lines
	echo 'a b c' | token encode --chat --top-logprobs 5 --max-tokens 6 | limited ds-prefill -m "$DS_MODEL" | limited ds-decode -m "$DS_MODEL" |
		token decode --jsonl >>lines
	run -0 "$PYTHON" -c '
import json, math
for line, want in zip(map(json.loads, open("lines")), (20, 5)):
    content = line["logprobs"]["content"]
    assert len(content) == len(line["ids"]) == line["usage"]["completion_tokens"]
    for t in content:
        tops = t["top_logprobs"]
        values = [x["logprob"] for x in tops]
        assert len(tops) == want and values == sorted(values, reverse=True) and sum(map(math.exp, values)) < 1 + 1e-6, t
        assert all(bytes(x["bytes"]).decode("utf-8", "ignore") == x["token"].replace("\ufffd", "") for x in tops + [t]), t
        if want == 5:
            assert {k: t[k] for k in ("token", "logprob", "bytes")} == tops[0], t
    text = b"".join(bytes(t["bytes"]) for t in content if not t["token"].startswith("<｜"))
    assert text.decode() == line["text"], (text, line["text"])'
}

@test "decode: logprobs of tokens that came without, that have no text, that are never chosen" {
	one=$(ids a)
	printf '%s\n' "{\"id\": \"a\", \"token\": [$one]}" "{\"id\": \"a\", \"token\": [1000, 1023], \"logprob\": -0.5, \"top\": [[$one, -0.25], [1023, -1e400]]}" \
		"{\"id\": \"a\", \"token\": [$one], \"done\": \"length\"}" | sed 's/-1e400/-Infinity/' | answers | token decode --jsonl >lines
	run -0 "$PYTHON" -c '
import json
c = json.load(open("lines"))["logprobs"]["content"]
assert [t["logprob"] for t in c] == [None, -0.5, -0.5, None], c
assert c[0]["token"] == "a" and c[0]["bytes"] == [97] and c[0]["top_logprobs"] == [], c[0]
assert c[1]["top_logprobs"][0] == {"token": "a", "logprob": -0.25, "bytes": [97]}, c[1]
assert c[1]["top_logprobs"][1]["logprob"] == -9999.0, c[1]'
}

@test "decode: after every token is shown what no stop string can take back, and nothing else is held" {
	cd "$DS_ROOT/tests/bats"
	limited "$PYTHON" hold_answers.py "$DS_MODEL" 60
	limited "$PYTHON" hold_answers.py "$DS_MODEL" 40 --jsonl
}

@test "decode --special: special tokens are held with the text around them, and are not counted" {
	a=$(ids ab) x=$(ids S) y=$(ids T) think=1
	{
		printf '{"id": "a", "token": [%s]}\n' "$a"
		printf '{"id": "a", "token": [%s], "last": {"hold": 1}}\n' "$x"
		printf '{"id": "a", "token": [%s], "last": {"hold": 1}}\n' "$think"
		printf '{"id": "a", "token": [%s], "last": {"finish_reason": "stop", "stop": "ST", "cut": 2}, "done": "stop"}\n' "$y"
	} | answers >frames
	printf 'ab\n' | cmp - <(token decode <frames)
	printf 'ab\n' | cmp - <(token decode --special <frames)
	printf '{"id": "a", "token": [%s]}\n{"id": "a", "token": [%s, %s], "done": "length"}\n' "$a" "$think" "$x" | answers >frames
	printf 'abS\n' | cmp - <(token decode <frames)
	has '^ab<.*>S$' < <(token decode --special <frames)
}

@test "decode: what is held when the input is cut, or the answer ends without a word, is shown" {
	printf '{"id": "a", "token": [%s], "last": {"hold": 1}}\n' "$(ids abc)" >lines
	{
		cat lines
		echo '{"id": "a", "done": "length"}'
	} | answers | token decode | cmp - <(echo abc)
	{
		cat lines
		echo '{"id": "a", "error": "no room"}'
	} | answers >frames
	token decode <frames 2>/dev/null | cmp - <(echo abc) || [ "${PIPESTATUS[0]}" -eq 65 ]
	{
		cat lines
		echo '{"cut": true}'
	} | answers >frames
	token decode <frames 2>/dev/null >text || true
	echo abc | cmp - text
}

# Three choices, their tokens mixed, the last to begin the first to end.
three() {
	printf '%s\n' "{\"id\": \"a\", \"token\": [$(ids one)]}" "{\"id\": \"a\", \"choice\": 1, \"token\": [$(ids two)]}" \
		"{\"id\": \"a\", \"choice\": 2, \"token\": [$(ids three)], \"last\": {\"finish_reason\": \"stop\"}}" \
		"{\"id\": \"b\", \"token\": [$(ids other)], \"last\": {\"finish_reason\": \"length\"}, \"done\": \"length\"}" \
		"{\"id\": \"a\", \"choice\": 1, \"token\": [$(ids $'\nmore')], \"last\": {\"finish_reason\": \"length\"}}" \
		"{\"id\": \"a\", \"token\": [$(ids ' end')], \"last\": {\"finish_reason\": \"stop\", \"stop\": \"d\", \"cut\": 1}, \"done\": \"stop\"}"
}

@test "decode: the answers of one request in the order of their choices, not mixed; --separator tells them apart" {
	three | answers >frames
	printf 'one en\ntwo\nmore\nthree\nother\n' | cmp - <(token decode <frames)
	printf 'one en\0two\nmore\0three\0other\0' | cmp - <(token decode --separator '\0' <frames)
	printf 'one en\n---\ntwo\nmore\n---\nthree\n---\nother\n---\n' | cmp - <(token decode --separator '\n---\n' <frames)
	printf 'one en\\\ttwo\nmore\\\tthree\\\tother\\\t' | cmp - <(token decode --separator '\\\t' <frames)
	printf 'one entwo\nmorethreeother' | cmp - <(token decode --separator '' <frames)
}

@test "decode --jsonl: a line for each choice: index, its own finish_reason, tokens and stop string" {
	three | answers | token decode --jsonl >lines
	run -0 "$PYTHON" -c '
import json
lines = [json.loads(line) for line in open("lines")]
assert [(o["id"], o["index"], o["text"], o["finish_reason"], o.get("stop_reason")) for o in lines] == [
    ("b", 0, "other", "length", None), ("a", 0, "one en", "stop", "d"), ("a", 1, "two\nmore", "length", None), ("a", 2, "three", "stop", None)], lines
assert all(o["usage"]["completion_tokens"] == len(o["ids"]) and o["usage"]["prompt_tokens"] == 3 for o in lines), lines'
}

@test "decode: a choice is shown as it comes when those before it have ended" {
	mkfifo in
	token decode --separator '|' <in >text 3>&- &
	exec 7>in
	wait_text() {
		local n=0
		until [ "$(cat text)" = "$1" ]; do
			n=$((n + 1))
			[ "$n" -lt 200 ] || { echo "shown: $(cat text), expected: $1" >&2; return 1; }
			sleep 0.05
		done
	}
	# Writes the frames at once, and then the sizes of what is to be seen after two of them.
	read -r one two < <("$PYTHON" -c '
import sys
sys.path.insert(0, sys.argv[1])
import dsf
a, b = int(sys.argv[2]), int(sys.argv[3])
out = open("frames", "wb")
w = dsf.Writer(out)
w.hello()
def token(index, choice, id, **more):
    w.write(5, 7, {"index": index, "id": id, "choice": choice, **more})
    return w.bytes
token(0, 0, a), token(0, 1, b)
seen = token(1, 1, b), token(1, 0, a, finish_reason="length")
token(2, 1, b, finish_reason="length")
w.write(6, 7, {"id": "a", "finish_reason": "length", "usage": {"prompt": 1, "completion": 5}})
w.end()
out.close() # before the sizes are said
print(*seen)' "$DS_ROOT/tests/bats" "$(ids a)" "$(ids b)")
	head -c "$one" frames >&7
	wait_text 'a'
	tail -c "+$((one + 1))" frames | head -c "$((two - one))" >&7
	wait_text 'aa|bb'
	tail -c "+$((two + 1))" frames >&7
	exec 7>&-
	wait_text 'aa|bbb|'
	wait
}

@test "decode: what a stage cannot have said fails its request alone, or the stream: 65" {
	local status=0
	b=$(ids other)
	# One request: the other is answered.
	for bad in '{"hold": 9}' '{"finish_reason": "stop", "stop": "x", "cut": 9}'; do
		status=0
		printf '%s\n' "{\"id\": \"a\", \"token\": [$(ids abc)], \"last\": $bad}" "{\"id\": \"b\", \"token\": [$b], \"done\": \"stop\"}" '{"id": "a", "done": "stop"}' |
			answers >frames
		token decode <frames >text 2>err || status=$?
		check_refusal 65 'takes back 9 bytes' "$status" err "$bad"
		has -x other <text
	done
	# What was shown cannot be held back any more.
	status=0
	printf '%s\n' "{\"id\": \"a\", \"token\": [$(ids abc)]}" "{\"id\": \"a\", \"token\": [$(ids d)], \"last\": {\"hold\": 2}, \"done\": \"stop\"}" | answers >frames
	token decode <frames >text 2>err || status=$?
	check_refusal 65 'takes back 2 bytes of text, of which 1 are not shown' "$status" err 'a hold behind what was shown'
	# The stream.
	while IFS='|' read -r line text; do
		printf '%s\n' "$line" | answers >frames
		refused 65 "$text" ds-token -m "$DS_MODEL" decode <frames || return 1
	done <<-'END'
		{"id": "a", "choice": 128, "token": [5], "done": "stop"}|'choice' is 128
		{"id": "a", "token": [5, 6], "each": {"finish_reason": "stop"}, "done": "stop"}|it ended where 1 is due
		{"id": "a", "token": [5], "each": {"cut": 1}, "done": "stop"}|'cut'
		{"id": "a", "token": [5], "each": {"stop": "x"}, "done": "stop"}|'stop'
		{"id": "a", "token": [5], "each": {"logprob": 0.5}, "done": "stop"}|'logprob' is 0.5
		{"id": "a", "token": [5], "done": "stop", "choices": [["stop", 1], ["stop", 0]]}|1 choices came, 2 were made
		{"id": "a", "token": [5, 6], "done": "stop", "choices": [["stop", 3]]}|'choices'
	END
}
