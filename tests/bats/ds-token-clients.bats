# ds-token: what clients of the OpenAI API and of vLLM send, and what they are told when something is wrong.
load helper
load token

# json KEYS: encodes a request with the prompt "x" and these keys.
json() {
	echo "{\"prompt\": \"x\", $1}" | token encode --jsonl
}

@test "content in parts: text parts are joined by newlines; others are refused by their type" {
	printf '%s\n' '{"messages": [{"role": "user", "content": "one\ntwo"}]}' | token encode --jsonl | requests >plain
	printf '%s\n' '{"messages": [{"role": "user", "content": [{"type": "text", "text": "one\ntwo"}]}]}' | token encode --jsonl | requests | cmp - plain
	echo '{"messages": [{"role": "user", "content": [{"type": "text", "text": "one"}, {"text": "two", "type": "text"}]}]}' |
		token encode --jsonl | requests | cmp - plain
	echo '{"messages": [{"role": "system", "content": [{"type": "text", "text": "S"}]}, {"role": "user", "content": "x"}]}' | token render >parts
	echo '{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "x"}]}' | token render | cmp - parts
	echo '[{"role": "user", "content": [{"type": "text", "text": ""}, {"type": "text", "text": "b"}]}]' | token render | has -x 'b<.*'
	while IFS='|' read -r content text; do
		refused 65 "$text" ds-token -m "$DS_MODEL" encode --jsonl <<<"{\"messages\": [{\"role\": \"user\", \"content\": $content}]}" || return 1
	done <<-'END'
		[{"type": "image_url", "image_url": {"url": "x"}}]|message 0 has a content part of type 'image_url': only 'text' is supported
		[{"type": "text", "text": "a"}, {"type": "input_audio"}]|of type 'input_audio'
		[{"type": "text"}]|without a 'text'
		[{"text": "a"}]|without a 'type'
		["a"]|without a 'type'
		[]|an empty array
		[{"type": "text", "text": 5}]|without a 'text'
	END
}

@test "a prompt in an array is that prompt; several are refused" {
	echo '{"prompt": "a b"}' | token encode --jsonl | requests >plain
	echo '{"prompt": ["a b"]}' | token encode --jsonl | requests | cmp - plain
	echo '{"prompt": [[5, 6]]}' | token encode --jsonl | requests | has '"ids": \[5, 6\]'
	refused 65 "'prompt' has 2 prompts, one a line is taken" ds-token -m "$DS_MODEL" encode --jsonl <<<'{"prompt": ["a", "b"]}'
	refused 65 "'prompt' has 2 prompts" ds-token -m "$DS_MODEL" encode --jsonl <<<'{"prompt": [[5], [6]]}'
}

@test "keys that change nothing are taken at such values, refused with key and value at others" {
	echo x | token encode | requests >plain
	local keys
	keys='"stream_options": {"include_usage": true}, "response_format": {"type": "text"}, "tool_choice": "auto", "parallel_tool_calls": true,
		"best_of": 1, "echo": false, "min_tokens": 0, "include_stop_str_in_output": false, "skip_special_tokens": true,
		"spaces_between_special_tokens": true, "length_penalty": 1.0, "use_beam_search": false'
	json "${keys//$'\n'/}" | requests | cmp - plain
	json '"stream_options": null, "response_format": null, "tool_choice": "none", "best_of": null, "echo": null' | requests | cmp - plain
	json '"best_of": 3, "n": 3, "temperature": 1' | requests | has '"n": 3'
	while IFS='|' read -r keys text; do
		refused 65 "$text" ds-token -m "$DS_MODEL" encode --jsonl <<<"{\"prompt\": \"x\", $keys}" || return 1
	done <<-'END'
		"stream_options": true|'stream_options' is true: not supported
		"response_format": {"type": "json_object"}|'response_format' is {"type":"json_object"}: not supported
		"response_format": {"type": "text", "schema": 1}|'response_format' is {
		"tool_choice": "required"|'tool_choice' is "required": not supported
		"tool_choice": {"type": "function"}|'tool_choice' is {
		"parallel_tool_calls": false|'parallel_tool_calls' is false: not supported
		"best_of": 4, "n": 2|'best_of' is 4: not supported
		"echo": true|'echo' is true: not supported
		"min_tokens": 5|'min_tokens' is 5: not supported
		"include_stop_str_in_output": true|'include_stop_str_in_output' is true: not supported
		"skip_special_tokens": false|'skip_special_tokens' is false: not supported
		"length_penalty": 2|'length_penalty' is 2: not supported
		"use_beam_search": true|'use_beam_search' is true: not supported
	END
	echo '{"prompt": "x", "min_tokens": 5}' | token encode --jsonl --ignore min_tokens | requests | cmp - plain
}

@test "several answers at temperature 0 are the same: one line says so, once" {
	printf 'a\nb\n' | token encode --lines --n 3 2>err >frames
	[ "$(wc -l <err)" -eq 1 ]
	has "request 'r0': at temperature 0 its 3 answers are the same" <err
	ds-frame check -q frames
	echo a | token encode --n 3 -q 2>err >frames
	echo a | token encode --n 3 --temperature 0.5 2>>err >frames
	echo a | token encode 2>>err >frames
	[ ! -s err ]
}

@test "encode --generation-config: the model's own defaults, behind options and JSON keys; without it none" {
	sampling() { requests | "$PYTHON" -c 'import json; s = json.loads(input())["meta"]["sampling"]; s.pop("seed"); print(json.dumps(s, sort_keys=True))'; }
	echo x | token encode | sampling | has '"temperature": 0.0, "top_k": 0, "top_p": 1.0'
	echo x | token encode --generation-config | sampling | has '"temperature": 0.6, "top_k": 0, "top_p": 0.95'
	echo x | token encode --top-p 1 --generation-config | sampling | has '"temperature": 0.6, "top_k": 0, "top_p": 1.0'
	echo '{"prompt": "x", "temperature": 0.25}' | token encode --jsonl --generation-config | sampling | has '"temperature": 0.25, "top_k": 0, "top_p": 0.95'
	mkdir m
	cp "$DS_MODEL"/{tokenizer,tokenizer_config,config}.json m
	refused 66 "generation_config.json'" ds-token -m m encode --generation-config <<<x
	echo '{"do_sample": false, "temperature": 0.5, "repetition_penalty": 1.5, "top_k": null}' >m/generation_config.json
	echo x | limited ds-token -m m encode --generation-config | sampling | has '"repetition_penalty": 1.5, "temperature": 0.0'
	echo '{"temperature": 0.5, "top_k": 7, "min_p": 0.5}' >m/generation_config.json
	echo x | limited ds-token -m m encode --generation-config | sampling | has '"min_p": 0.5, "temperature": 0.5, "top_k": 7'
	echo '{"top_p": 0}' >m/generation_config.json
	refused 65 "'m/generation_config.json': 'top_p'" ds-token -m m encode --generation-config <<<x
	for bad in '{' '[]' '{"temperature": "hot"}'; do
		echo "$bad" >m/generation_config.json
		refused 65 'generation_config.json' ds-token -m m encode --generation-config <<<x || return 1
	done
}

@test "one operand is the input file" {
	echo 'a b' >text
	token encode text | requests >got
	token encode <text | requests | cmp - got
	token tokens text | cmp - <(token tokens <text)
	token encode text -o frames
	limited ds-decode -m "$DS_MODEL" frames -o answer
	token decode answer | cmp - <(token decode <answer)
	echo '[{"role": "user", "content": "x"}]' >messages
	token render messages | cmp - <(token render <messages)
}

@test "encode --lines: empty lines are passed over, but counted" {
	printf 'a\n\n \t\nb\n\n' | token encode --lines | requests | grep -o '"id": "[^"]*"' >got
	printf '"id": "%s"\n' r0 r3 | cmp - got
	printf '\n\n' | token encode --lines >frames
	[ "$("$PYTHON" "$DSF" types frames | paste -sd ' ')" = 'hello end' ]
}

@test "a request's name is said once" {
	local status=0
	printf '{"id": "a", "error": "request %sa%s: no room"}\n' "'" "'" | answers >frames
	token decode <frames 2>err || status=$?
	check_refusal 65 "ds-token: request 'a': no room" "$status" err 'an error that names its request'
	[ "$(grep -o "request 'a'" err | wc -l)" -eq 1 ]
}

@test "decode --jsonl: an error says whether to try again" {
	printf '{"id": "a", "error": "full", "code": 75, "retryable": true}\n' | answers >frames
	token decode --jsonl <frames 2>/dev/null >line || true
	has '"error":{"code":75,"message":"full","retryable":true}' <line
}

# serve [OPTION...]: ds-decode at s.sock.
serve() {
	rm -f s.sock
	background ds-decode -m "$DS_MODEL" -l unix:s.sock "$@"
	SERVER=$BG
	wait_socket s.sock
}

# two: requests that take long.
two() {
	printf '{"id": "%s", "prompt": "x", "ignore_eos": true}\n' mine1 mine2
}

# wait_bytes FILE: until answers come.
wait_bytes() {
	local n=0
	until [ "$(wc -c <"$1")" -gt 2000 ]; do
		n=$((n + 1))
		[ "$n" -lt 200 ] || { echo "no answers in '$1' after 10 s" >&2; return 1; }
		sleep 0.05
	done
}

# kill_hard: the service itself, not the timeout(1) around it, by its number.
kill_hard() {
	kill -KILL "$(cat "/proc/$SERVER/task/$SERVER/children")"
}

@test "encode -c: the peer dies: each request is an error of its own name, to be tried again; one line says what broke off" {
	local status=0
	serve
	two >lines
	{ token encode --jsonl -c unix:s.sock lines 2>err >frames || echo $? >status; } 3>&- &
	wait_bytes frames
	kill_hard
	wait $!
	check_refusal 69 "the connection to 'unix:s.sock' broke off" "$(cat status)" err 'a lost peer'
	run ! has 'frame' <err
	token decode --jsonl <frames >got 2>/dev/null || status=$?
	[ "$status" -eq 69 ]
	"$PYTHON" -c '
import json
lines = {o["id"]: o for o in map(json.loads, open("got"))}
assert sorted(lines) == ["mine1", "mine2"], lines
for o in lines.values():
    assert o["finish_reason"] == "error" and o["error"]["code"] == 69 and o["error"]["retryable"] is True, o
    assert "broke off" in o["error"]["message"], o'
}

@test "decode -c: the peer dies: every request has its line" {
	local n=0
	serve -v -v
	two | token encode --jsonl >requests
	{ token decode --jsonl -c unix:s.sock requests 2>err >got || echo $? >status; } 3>&- &
	until grep -q 'has connected' "$BG_ERR" || [ "$n" -gt 200 ]; do
		n=$((n + 1))
		sleep 0.05
	done
	sleep 0.3
	kill_hard
	wait $!
	check_refusal 69 "the connection to 'unix:s.sock' broke off" "$(cat status)" err 'a lost peer'
	"$PYTHON" -c '
import json
lines = {o["id"]: o for o in map(json.loads, open("got"))}
assert sorted(lines) == ["mine1", "mine2"], lines
assert all(o["error"]["code"] == 69 and o["error"]["retryable"] for o in lines.values()), lines'
}

@test "a drain that takes too long: 75 for each request, for the client and for the service" {
	local status=0
	serve --drain-timeout 300ms
	two >lines
	{ token encode --jsonl -c unix:s.sock lines 2>err >frames || echo $? >status; } 3>&- &
	local client=$!
	wait_bytes frames
	kill "$SERVER"
	wait "$client"
	wait "$SERVER" || status=$?
	[ "$status" -eq 75 ]
	[ "$(cat status)" -eq 75 ]
	token decode --jsonl <frames 2>/dev/null >got || true
	[ "$(grep -c '"error":{"code":75,.*"retryable":true' got)" -eq 2 ]
}

@test "a request on an idle connection to a service that drains is answered: try again" {
	local n=0
	serve
	mkfifo in
	token encode --id idle --lines -c unix:s.sock <in >frames 3>&- &
	local idle=$!
	exec 7>in
	echo '{"id": "busy", "prompt": "x", "ignore_eos": true, "max_tokens": 400, "n": 8, "temperature": 1}' >lines
	token encode --jsonl -c unix:s.sock lines >busy 3>&- &
	local busy=$!
	wait_bytes busy
	kill "$SERVER"
	until [ ! -e s.sock ]; do # the drain has begun
		n=$((n + 1))
		[ "$n" -lt 500 ]
		sleep 0.01
	done
	echo 'now' >&7
	wait "$busy"
	wait "$idle" || true
	exec 7>&-
	token decode --jsonl <frames 2>/dev/null >got || true
	has '"id":"idle0".*"error":{"code":75,"message":"[^"]*draining[^"]*","retryable":true}' <got
	token decode --jsonl <busy | has '"finish_reason":"length"'
}

@test "waiting for a peer is said once, after a second, not with -q" {
	echo x | { timeout 3 ds-token -m "$DS_MODEL" encode -c unix:nobody.sock 2>err || true; }
	[ "$(cat err)" = "ds-token: waiting for 'unix:nobody.sock'" ]
	echo x | { timeout 2 ds-token -m "$DS_MODEL" encode -q -c unix:nobody.sock 2>err || true; }
	[ ! -s err ]
	echo x >text
	background ds-token -m "$DS_MODEL" encode --max-tokens 3 -c unix:s.sock -o frames text
	local client=$BG
	sleep 1.3
	serve
	wait "$client"
	ds-frame check -q frames
}
