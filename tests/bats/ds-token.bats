# ds-token: text to requests, tokens to text.
load helper
load token

@test "text is one request: bos, its ids, one newline at the end removed, defaults" {
	printf 'Hello\n\n' | token encode | requests >got
	[ "$(wc -l <got)" -eq 1 ]
	run -0 "$PYTHON" -c '
import json
r = json.load(open("got"))
assert r["id"] == "r0" and r["ids"][0] == 0 and len(r["ids"]) > 2, r
m = r["meta"]
assert m["sampling"] == {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": 0, "logprobs": False}, m
assert m["max_tokens"] == 0 and m["stop_ids"] == [] and m["ignore_eos"] is False, m'
	printf 'Hello\n' | token encode | requests | cmp - <(printf 'Hello' | token encode | requests)
	run -1 cmp got <(printf 'Hello' | token encode | requests)
}

@test "options are the requests' defaults" {
	echo x | token encode --id me --temperature 0.5 --top-p 0.9 --top-k 7 --seed 42 --max-tokens 9 --stop-id 5 --stop-id 6 --ignore-eos --logprobs |
		requests >got
	run -0 "$PYTHON" -c '
import json
r = json.load(open("got"))
assert r["id"] == "me", r
m = r["meta"]
assert m["sampling"] == {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 42, "logprobs": True}, m
assert m["max_tokens"] == 9 and m["stop_ids"] == [5, 6] and m["ignore_eos"] is True, m'
}

@test "--chat renders the template; --system goes in front; it is what render writes" {
	printf 'Hi' | token render --chat >text
	printf '%s' '<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜><think>
' | cmp - text
	printf 'Hi\n' | token render --chat --system 'Be brief.' >text
	printf '%s' '<｜begin▁of▁sentence｜>Be brief.<｜User｜>Hi<｜Assistant｜><think>
' | cmp - text
	printf '[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]' | token render | cmp - text
	printf '{"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": false}' | token render >short
	printf '%s' '<｜begin▁of▁sentence｜><｜User｜>Hi' | cmp - short
	printf 'Hi\n' | token encode --chat --system 'Be brief.' | requests >a
	printf '{"prompt": "Hi"}\n' | token encode --jsonl --chat --system 'Be brief.' | requests | cmp - a
	printf '{"messages": [{"role": "user", "content": "Hi"}]}\n' | token encode --jsonl --system 'Be brief.' | requests | cmp - a
	printf '{"prompt": [{"role": "user", "content": "Hi"}]}\n' | token encode --jsonl --system 'Be brief.' | requests | cmp - a
}

@test "--lines and --jsonl: a request a line, ids r0, r1, ... or --id's, text without a newline at the end too" {
	run -0 bash -c "printf 'a\nb\nc' | ds-token -m '$DS_MODEL' encode --lines | '$PYTHON' '$DSF' types -"
	assert_output $'hello\nrequest\nrequest\nrequest\nend'
	printf 'a\nb\nc' | token encode --lines | requests | grep -o '"id": "[^"]*"' >got
	printf '"id": "%s"\n' r0 r1 r2 | cmp - got
	printf 'a\nb\n' | token encode --lines --id q | requests | grep -o '"id": "[^"]*"' >got
	printf '"id": "%s"\n' q0 q1 | cmp - got
	printf '{"id": "z", "prompt": "a"}\n\n{"prompt": "b"}\n{"id": 7, "prompt_ids": [5, 6]}' | token encode --jsonl | requests >got
	grep -o '"id": "[^"]*"' got | cmp - <(printf '"id": "%s"\n' z r2 7)
	grep -q '"ids": \[5, 6\]' got
}

@test "a JSON line's keys go before the options" {
	printf '%s\n' '{"prompt": "x", "temperature": 1.5, "top_p": 0.25, "top_k": 3, "seed": 9, "max_tokens": 4, "logprobs": true, "stop_token_ids": [8],
"ignore_eos": true, "user": "u", "metadata": {"a": 1}, "model": "m", "stream": true, "n": 1}' | tr -d '\n' |
		token encode --jsonl --temperature 0.1 --max-tokens 99 --stop-id 1 | requests >got
	run -0 "$PYTHON" -c '
import json
m = json.load(open("got"))["meta"]
assert m["sampling"] == {"temperature": 1.5, "top_p": 0.25, "top_k": 3, "seed": 9, "logprobs": True}, m
assert m["max_tokens"] == 4 and m["stop_ids"] == [8] and m["ignore_eos"] is True, m'
}

@test "a wrong line is an error of its request: one line names it, the others are encoded, the exit status tells" {
	local status=0
	printf '%s\n' '{"prompt": "a"}' '{"prompt": "a", "max_token": 5}' '{"prompt": "c"}' | token encode --jsonl >frames 2>err || status=$?
	check_refusal 65 "line 2: unknown key 'max_token'" "$status" err 'an unknown key'
	ds-frame check frames
	[ "$("$PYTHON" "$DSF" types frames | paste -sd ' ')" = 'hello request error request end' ]
	requests <frames | has 'line 2: unknown key'
	printf '%s\n' '{"prompt": "a", "answer": 1, "skill": 2}' | token encode --jsonl --ignore answer,skill | requests | has r0
}

@test "what a JSON line may not say: 65, and the key by name" {
	while IFS='|' read -r line text; do
		refused 65 "$text" ds-token -m "$DS_MODEL" encode --jsonl <<<"$line" || return 1
	done <<-'END'
		{"prompt": "a"|line 1: bad JSON
		[1]|no JSON object
		{"prompt": "a", "prompt": "b"}|duplicate
		{}|'prompt'
		{"prompt": "a", "messages": []}|one of
		{"prompt": ""}|empty
		{"prompt": 5}|'prompt'
		{"prompt_ids": []}|empty
		{"prompt_ids": [1024]}|'prompt_ids' is not a whole number from 0 to 1023
		{"prompt_ids": [-1]}|'prompt_ids'
		{"prompt_ids": [1.5]}|'prompt_ids'
		{"prompt_ids": "a"}|'prompt_ids'
		{"messages": []}|'messages'
		{"messages": "a"}|'messages'
		{"messages": [{"content": "a"}]}|message 0 has no 'role'
		{"messages": [{"role": "user", "content": 5}]}|chat template
		{"messages": [{"role": "user"}]}|'content' is undefined
		{"prompt": "a", "temperature": -1}|'temperature'
		{"prompt": "a", "temperature": "hot"}|'temperature'
		{"prompt": "a", "top_p": 0}|'top_p'
		{"prompt": "a", "top_p": 1.1}|'top_p'
		{"prompt": "a", "top_k": -2}|'top_k'
		{"prompt": "a", "seed": 1.5}|'seed'
		{"prompt": "a", "max_tokens": -5}|'max_tokens'
		{"prompt": "a", "max_tokens": 5.0}|'max_tokens'
		{"prompt": "a", "logprobs": 21}|'logprobs'
		{"prompt": "a", "logprobs": "yes"}|'logprobs'
		{"prompt": "a", "n": 0}|'n'
		{"prompt": "a", "n": 129}|'n'
		{"prompt": "a", "n": 1.0}|'n'
		{"prompt": "a", "stop_token_ids": [1024]}|'stop_token_ids' is not a whole number from 0 to 1023
		{"prompt": "a", "stop_token_ids": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}|'stop_token_ids'
		{"prompt": "a", "stop": 5}|'stop'
		{"prompt": "a", "stop": ["x", null]}|'stop'
		{"prompt": "a", "stop": ""}|'stop' has a text of 0 bytes
		{"prompt": "a", "stop": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}|'stop'
		{"prompt": "a", "min_p": 1.5}|'min_p'
		{"prompt": "a", "min_p": true}|'min_p'
		{"prompt": "a", "repetition_penalty": 0}|'repetition_penalty'
		{"prompt": "a", "repetition_penalty": 11}|'repetition_penalty'
		{"prompt": "a", "presence_penalty": -2.1}|'presence_penalty'
		{"prompt": "a", "frequency_penalty": 2.1}|'frequency_penalty'
		{"prompt": "a", "top_logprobs": 21}|'top_logprobs'
		{"prompt": "a", "top_logprobs": 2, "logprobs": false}|'top_logprobs' is 2, but 'logprobs' is false
		{"prompt": "a", "logit_bias": [[5, 1]]}|'logit_bias'
		{"prompt": "a", "logit_bias": {"x": 1}}|'logit_bias' has 'x', no token id from 0 to 1023
		{"prompt": "a", "logit_bias": {"1024": 1}}|'logit_bias' has '1024'
		{"prompt": "a", "logit_bias": {"5": 101}}|'logit_bias' of token 5
		{"prompt": "a", "logit_bias": {"5": null}}|'logit_bias' of token 5
		{"prompt": "a", "logit_bias": {"5": 1, "05": 2}}|'logit_bias' has token 05 twice
		{"prompt": "a", "id": ""}|'id'
		{"prompt": "a", "id": "0123456789012345678901234567890123456789012345678901234567890123456789"}|'id'
		{"prompt": "a", "chat_template_kwargs": 5}|'chat_template_kwargs'
	END
}

@test "an id used twice ends the stream: 65" {
	local status=0
	printf '%s\n' '{"id": "a", "prompt": "x"}' '{"id": "a", "prompt": "y"}' '{"id": "b", "prompt": "z"}' | token encode --jsonl >frames 2>err || status=$?
	check_refusal 65 "line 2: request id 'a' was used before" "$status" err 'an id twice'
	run -65 ds-frame check frames
	refused 65 "'r0'" ds-token -m "$DS_MODEL" encode --jsonl <<<'{"id": "r1", "prompt": "x"}
{"prompt": "y"}' || refused 65 "'r1'" ds-token -m "$DS_MODEL" encode --jsonl <<<'{"id": "r1", "prompt": "x"}
{"prompt": "y"}'
}

@test "bad usage: 64" {
	refused 64 'sub-command' ds-token -m "$DS_MODEL"
	refused 64 "'encrypt'" ds-token -m "$DS_MODEL" encrypt
	refused 64 "unexpected operand 'more'" ds-token -m "$DS_MODEL" encode text more
	refused 66 "cannot open 'nowhere'" ds-token -m "$DS_MODEL" encode nowhere
	refused 64 '--lines' ds-token -m "$DS_MODEL" encode --lines --jsonl </dev/null
	refused 64 '--system' ds-token -m "$DS_MODEL" encode --system x </dev/null
	refused 64 'top-p' ds-token -m "$DS_MODEL" encode --top-p 0 </dev/null
	refused 64 'stop-id' ds-token -m "$DS_MODEL" encode --stop-id x </dev/null
	refused 64 '--var' ds-token -m "$DS_MODEL" encode --var x </dev/null
	refused 64 '--id' ds-token -m "$DS_MODEL" encode --id '' </dev/null
	for option in --listen=unix:s --ready-fd=3 --drain-timeout=3 --insecure; do # it is never a service
		refused 64 "unknown option '${option}'" ds-token -m "$DS_MODEL" encode "$option" </dev/null || return 1
	done
	refused 64 "--stop-id: 1024 is not below 1024" ds-token -m "$DS_MODEL" encode --stop-id 1023 --stop-id 1024 </dev/null
	refused 64 "--logit-bias: token 99999 is not below 1024" ds-token -m "$DS_MODEL" encode --logit-bias 99999=1 </dev/null
}

@test "empty text and text that is no UTF-8: 65" {
	refused 65 'the prompt is empty' ds-token -m "$DS_MODEL" encode </dev/null
	refused 65 'the prompt is empty' ds-token -m "$DS_MODEL" encode <<<''
	printf 'ab\377' >bad
	refused 65 'offset 2' ds-token -m "$DS_MODEL" encode -i bad
	refused 65 'offset 2' ds-token -m "$DS_MODEL" encode --chat -i bad
	refused 65 'offset 2' ds-token -m "$DS_MODEL" tokens -i bad
	refused 65 'not UTF-8' ds-token -m "$DS_MODEL" encode --chat --system $'\377' <<<x
}

@test "NUL bytes are text" {
	printf 'a\0b' | token encode | requests >got
	run -0 "$PYTHON" -c 'import json; assert len(json.load(open("got"))["ids"]) == 4'
	printf 'a\0b' | token tokens | has -F '\x00'
}

@test "tokens: ids and pieces; parts of characters and control characters in escapes" {
	run -0 bash -c "printf 'a\tb\\\\ \xe4\xbd\xa0 12' | ds-token -m '$DS_MODEL' tokens"
	assert_line $'0\t<｜begin▁of▁sentence｜>'
	assert_line --regexp $'^[0-9]+\ta$'
	assert_line --partial '\t'
	assert_line --partial $'\x5c'
	assert_line --partial '\xe4'
	assert_line --regexp $'^[0-9]+\t1$'
}

@test "a line is sent when it is complete, an answer is shown as it comes" {
	mkfifo in out
	background ds-token -m "$DS_MODEL" encode --lines -i in -o out
	exec 7>in 8<out
	echo one >&7
	timeout 20 head -c 500 <&8 | grep -qa r0
	exec 7>&- 8<&-
	wait "$BG" || true
}

@test "decode: tokens to text, whole characters only, special tokens on demand" {
	text='你好 é 😀 <think>x'
	printf '{"id": "a", "token": [%s, 1], "done": "stop"}\n' "$(ids "$text")" | answers >frames
	printf '%s\n' "$text" | cmp - <(token decode <frames)
	printf '%s<｜end▁of▁sentence｜>\n' "$text" | cmp - <(token decode --special <frames)
	token decode -i frames -o text
	printf '%s\n' "$text" | cmp - text
}

@test "decode: answers of several requests in the order of their first tokens, each whole" {
	a=$(ids 'alpha') b=$(ids 'beta') c=$(ids 'gamma')
	{
		printf '{"id": "a", "token": [%s]}\n' "${a%%,*}"
		printf '{"id": "b", "token": [%s]}\n' "$b"
		printf '{"id": "c", "token": [%s], "done": "stop"}\n' "$c"
		printf '{"id": "b", "done": "length"}\n'
		printf '{"id": "a", "token": [%s], "done": "stop"}\n' "${a#*,}"
	} | answers >frames
	printf 'alpha\nbeta\ngamma\n' | cmp - <(token decode <frames)
	token decode --jsonl <frames | grep -o '"id":"."' | paste -sd ' ' >order
	echo '"id":"c" "id":"b" "id":"a"' | cmp - order
}

@test "decode --jsonl: id, text, ids, finish_reason, usage, logprobs" {
	printf '{"id": "a", "token": [%s], "logprob": -0.5, "done": "stop"}\n{"id": "b", "token": [%s], "done": "length"}\n' "$(ids hello)" "$(ids 'a"b')" |
		answers | token decode --jsonl >lines
	run -0 "$PYTHON" -c '
import json
a, b = map(json.loads, open("lines"))
assert a["id"] == "a" and a["text"] == "hello" and a["finish_reason"] == "stop", a
assert a["usage"] == {"prompt_tokens": 3, "completion_tokens": len(a["ids"]), "total_tokens": 3 + len(a["ids"]),
                      "prompt_cache_hit_tokens": 1, "prompt_cache_miss_tokens": 2}, a
assert [t["logprob"] for t in a["logprobs"]["content"]] == [-0.5] * len(a["ids"]), a
assert a["index"] == b["index"] == 0, b
assert b["text"] == "a\"b" and b["finish_reason"] == "length" and "logprobs" not in b, b'
}

@test "decode: a failed request keeps its text, is named on stderr, and gives the exit status; the others are not touched" {
	local status=0
	printf '%s\n' "{\"id\": \"a\", \"token\": [$(ids one)]}" "{\"id\": \"b\", \"token\": [$(ids two)]}" '{"id": "a", "error": "no room", "code": 75}' \
		'{"id": "b", "done": "stop"}' | answers >frames
	token decode <frames >text 2>err || status=$?
	check_refusal 75 "request 'a': no room" "$status" err 'an error frame'
	printf 'one\ntwo\n' | cmp - text
	status=0
	token decode --jsonl <frames >lines 2>err || status=$?
	check_refusal 75 "request 'a': no room" "$status" err 'an error frame'
	run -0 "$PYTHON" -c '
import json
a, b = map(json.loads, open("lines"))
assert a["text"] == "one" and a["finish_reason"] == "error" and a["error"] == {"code": 75, "message": "no room", "retryable": False}, a
assert b["text"] == "two" and b["finish_reason"] == "stop", b'
}

@test "decode: the name of a failed request is known although the frame does not say it" {
	local status=0
	printf 'a\n\377\n' | { token encode --lines 2>/dev/null || true; } | "$PYTHON" -c '
import sys
sys.path.insert(0, sys.argv[1])
import dsf
w = dsf.Writer(sys.stdout.buffer)
for kind, flags, stream, seq, meta, data in dsf.read_frames("-"):
    if kind in (1, 7):
        w.write(kind, stream, meta)
w.write(15, 0, {"frames": w.seq, "bytes": w.bytes})' "$DS_ROOT/tests/bats" >frames
	token decode <frames >text 2>err || status=$?
	check_refusal 65 "request 'r1': line 2: " "$status" err 'an error of encode'
}

@test "decode: input that is cut: what came is shown, 65" {
	local status
	printf '%s\n' "{\"id\": \"a\", \"token\": [$(ids one)]}" "{\"id\": \"b\", \"token\": [$(ids two)], \"done\": \"stop\"}" '{"cut": true}' | answers >frames
	status=0
	token decode <frames >text 2>err || status=$?
	check_refusal 65 '' "$status" err 'a cut stream'
	printf 'one\ntwo\n' | cmp - text
	printf '%s\n' "{\"id\": \"a\", \"token\": [$(ids one)]}" | answers >frames
	status=0
	token decode <frames >text 2>err || status=$?
	check_refusal 65 'part only' "$status" err 'a request without its end'
	echo one | cmp - text
	status=0
	token decode --jsonl <frames >lines 2>err || status=$?
	check_refusal 65 'part only' "$status" err 'a request without its end'
	grep -q '"text":"one","ids":\[.*\],"finish_reason":null' lines
}

@test "decode: a token over the stated vocabulary fails its request, the others go on: 65" {
	local status vocab one two
	one=$(ids one) two=$(ids two)
	printf '%s\n' "{\"id\": \"a\", \"token\": [$one, 1024, 5]}" "{\"id\": \"b\", \"token\": [$two]}" '{"id": "a", "token": [1025, 6], "done": "stop"}' \
		'{"id": "b", "done": "stop"}' >lines
	for vocab in '' 1024; do # the model's config.json states it, or the stream
		# shellcheck disable=SC2086 # nothing, where it is empty
		answers $vocab <lines >frames
		status=0
		token decode <frames >text 2>err || status=$?
		check_refusal 65 'id 1024 is not below 1024' "$status" err 'a token over the vocabulary'
		printf 'one\ntwo\n' | cmp - text
		status=0
		token decode --jsonl <frames >out 2>err || status=$?
		check_refusal 65 'id 1024 is not below 1024' "$status" err 'a token over the vocabulary'
		run -0 "$PYTHON" -c '
import json
a, b = map(json.loads, open("out"))
assert a["id"] == "a" and a["text"] == "one" and a["finish_reason"] == "error" and a["error"]["code"] == 65, a
assert b["id"] == "b" and b["text"] == "two" and b["finish_reason"] == "stop", b'
	done
}

@test "decode: a token below the stated vocabulary that the tokenizer has no text for is U+FFFD" {
	mkdir large
	cp "$DS_MODEL/tokenizer.json" "$DS_MODEL/tokenizer_config.json" large
	sed 's/"vocab_size": *1024/"vocab_size": 1280/' "$DS_MODEL/config.json" >large/config.json
	printf '{"id": "a", "token": [%s, 1024, 1279, %s], "done": "stop"}\n' "$(ids one)" "$(ids two)" >lines
	answers 1280 <lines >frames
	printf 'one\357\277\275\357\277\275two\n' | cmp - <(token decode <frames)
	printf 'one\357\277\275\357\277\275two\n' | cmp - <(limited ds-token -m large decode <frames)
	answers <lines | limited ds-token -m large decode | cmp - <(token decode <frames)
	token decode --jsonl <frames | has '1024,1279.*"finish_reason":"stop"'
	rm large/config.json # nothing states a vocabulary
	answers <lines | limited ds-token -m large decode | cmp - <(token decode <frames)
}

@test "decode: a CANCEL in the stream is passed over" {
	printf '%s\n' "{\"id\": \"a\", \"token\": [$(ids one)]}" '{"id": "z", "cancel": true}' '{"id": "a", "cancel": true}' '{"id": "a", "done": "cancelled"}' |
		answers >frames
	token decode <frames >text
	echo one | cmp - text
	token decode --jsonl <frames | has '"text":"one".*"finish_reason":"cancelled"'
}

@test "encode: ids that no frame can carry: 64 as an option, 65 for one line of JSON" {
	local status=0
	refused 64 '--id: not UTF-8' ds-token -m "$DS_MODEL" encode --id $'\xff' <<<x
	refused 64 '--id: not UTF-8' ds-token -m "$DS_MODEL" encode --lines --id $'r\xc3' <<<x
	refused 64 '--id' ds-token -m "$DS_MODEL" encode --id "$(printf '%065d' 0)" <<<x
	for id in "\"$(printf '%065d' 0)\"" '""' '"a\u0000b"' 1.5 null '[]' '"\ud800"' $'"\xff"'; do
		status=0
		printf '%s\n' '{"prompt": "a"}' "{\"prompt\": \"b\", \"id\": $id}" '{"prompt": "c", "id": "last"}' | token encode --jsonl >frames 2>err || status=$?
		check_refusal 65 'line 2: ' "$status" err "id $id"
		[ "$("$PYTHON" "$DSF" types frames | paste -sd ' ')" = 'hello request error request end' ]
	done
}

@test "encode: a line of 200 MB is looked through once" {
	not_sanitized "200 MB"
	run -0 bash -c "head -c 200000000 /dev/zero | tr '\\0' ' ' | timeout 20 ds-token -m '$DS_MODEL' encode --jsonl | '$PYTHON' '$DSF' types -"
	assert_output $'hello\nend'
}

@test "decode: tokens that are lost: 65; a smaller vocabulary than the tokenizer's: 76" {
	printf '%s\n' '{"id": "a", "token": [5, 6], "done": "stop", "n": 3}' | answers >frames
	refused 65 '2 tokens came, 3 were made' ds-token -m "$DS_MODEL" decode <frames
	printf '%s\n' '{"id": "a", "token": [5, 6, 7], "done": "stop"}' | answers >frames
	"$PYTHON" "$DSF" set frames token index 5 >lost
	refused 65 'token 5, 0 is due' ds-token -m "$DS_MODEL" decode <lost
	printf '%s\n' '{"id": "a", "token": [5], "done": "stop"}' | answers 1000 >frames
	refused 76 'vocabulary of 1000' ds-token -m "$DS_MODEL" decode <frames
}

@test "encode states the model's vocabulary; a folder with a tokenizer only does as well" {
	echo x | token encode | ds-frame dump | has '"type":"hello".*"minor":1,.*"vocab":1024'
	mkdir only
	cp "$DS_MODEL/tokenizer.json" "$DS_MODEL/tokenizer_config.json" only
	echo x | limited ds-token -m only encode --chat | requests | cmp - <(echo x | token encode --chat | requests)
	sed 's/"vocab_size": *1024/"vocab_size": 1000/' "$DS_MODEL/config.json" >only/config.json
	refused 65 'ids up to 1023' ds-token -m only encode <<<x
	rm only/config.json only/tokenizer_config.json
	refused 78 'no chat template' ds-token -m only encode --chat <<<x
	[ "$(printf a | limited ds-token -m only tokens | wc -l)" -eq 1 ]
	sed 's/"BPE"/"Unigram"/' "$DS_MODEL/tokenizer.json" >only/tokenizer.json
	refused 65 "'Unigram'" ds-token -m only encode <<<x
}

@test "template variables: --var and chat_template_kwargs" {
	mkdir vars
	cp "$DS_MODEL/tokenizer.json" vars
	printf '{"chat_template": "{%% if thinking is defined and thinking %%}T{{ level }}{%% else %%}N{%% endif %%}{{ messages[0].content }}"}' >vars/tokenizer_config.json
	[ "$(printf x | limited ds-token -m vars render --chat)" = Nx ]
	[ "$(printf x | limited ds-token -m vars render --chat --var thinking=true --var level=high)" = Thighx ]
	[ "$(printf x | limited ds-token -m vars render --chat --var thinking=false)" = Nx ]
	[ "$(printf '{"messages": [{"role": "user", "content": "y"}], "chat_template_kwargs": {"thinking": true, "level": 3}}' |
		limited ds-token -m vars render)" = T3y ]
}

@test "the tokenizer of DeepSeek-V3 in its place" {
	need_shared tokenizers/deepseek-v3/tokenizer.json
	[ "$(printf 'Hello' | limited ds-token -m "$DS_SHARED/tokenizers/deepseek-v3" tokens | cut -f 1 | paste -sd ' ')" = '0 19923' ]
	printf 'Hello' | limited ds-token -m "$DS_SHARED/tokenizers/deepseek-v3" encode --chat | requests | has '"ids": \[0, 128803, 19923, 128804\]'
}

@test "encode: without --seed every request that draws gets another one; the captured request gives the same answer again" {
	printf 'a\nb\n' | token encode --lines --temperature 1 >drawn.frames
	ds-frame dump drawn.frames | "$PYTHON" -c '
import json, sys
seeds = [f["meta"]["sampling"]["seed"] for f in map(json.loads, sys.stdin) if f["type"] == "request"]
assert len(seeds) == 2 and seeds[0] != seeds[1] and all(0 < s < 2**53 for s in seeds), seeds
'
	answer() { ds-prefill -m "$DS_MODEL" -i drawn.frames | ds-decode -m "$DS_MODEL" | ds-token -m "$DS_MODEL" decode --jsonl; }
	answer >one
	answer >two
	cmp one two
}
