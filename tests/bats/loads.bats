# Load and plan frames in ds-frame, written and read by a second implementation (unit_frames.py).
load helper

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
	PYTHONDONTWRITEBYTECODE=1
	export PYTHONDONTWRITEBYTECODE
}

frames() {
	"$PYTHON" "$DS_ROOT/tests/bats/unit_frames.py" "$@"
}

# wrong TEXT CODE: a capture changed by CODE is refused by check with TEXT.
wrong() {
	frames write bad "$2"
	refused 65 "$1" ds-frame check bad
}

@test "a capture of loads and a plan is sound, shown, sliced" {
	frames write c
	run -0 limited ds-frame check c
	assert_output --partial ' 9 frames'
	ds-frame dump c | has '"type":"plan".*"slots":2.*"name":"placement","dtype":"I32","dims":\["layer","rank","slot"\],"shape":\[2,3,2\],"min":-1,"max":3'
	ds-frame dump c | has '"type":"load".*"flags":\["droppable"\].*"waited_ns":\[1000000,2000000,1500000\].*"name":"received".*"max":1099511627776'
	ds-frame filter -t plan c -o p
	ds-frame filter -t load c -o l
	[ "$(ds-frame dump p | wc -l)" -eq 3 ]
	[ "$(ds-frame dump l | wc -l)" -eq 8 ]
	ds-frame merge p l -o m
	limited ds-frame check m
}

@test "stat says what each rank did, and for whom it waited longest" {
	frames write c
	run -0 limited ds-frame stat c
	assert_line --regexp '^load +6 '
	#                    rank frames seconds steps tokens chosen computed      sent    received waited longest
	assert_line --regexp '^0 +2 +10\.0 +23 +200 +80 +2199023255552 +12000 +120 +5\.0  2$'
	assert_line --regexp '^1 +2 +10\.0 +25 +200 +96 +2199023255552 +12000 +120 +9\.0  1$'
	assert_line --regexp '^2 +2 +10\.0 +27 +200 +112 +2199023255552 +12000 +120 +0\.0  -$'
	ds-frame stat --json c >json
	"$PYTHON" - <<-'END'
		import json
		loads = json.load(open("json"))["loads"]
		assert [(l["rank"], l["frames"], l["steps"], l["chosen"], l["waited_ns"], l["longest_for"]) for l in loads] == \
		       [(0, 2, 23, 80, 5000000, 2), (1, 2, 25, 96, 9000000, 1), (2, 2, 27, 112, 0, None)], loads
		assert loads[0]["interval_ns"] == 10**10 and loads[0]["received_bytes"] == 120 and loads[0]["computed"] == 2 << 40
	END
	ds-frame filter -t plan c | ds-frame stat | refute grep rank
}

@test "diff: times do not count, placements, weights and counts do" {
	frames write a
	frames write b 'if kind == "load": meta["t_ns"] += 5; meta["interval_ns"] = 1; meta["waited_ns"] = [9, 9, 9]'
	limited ds-frame diff a b
	frames write b 'if kind == "plan": data["placement"][0:2] = [0, 3]'
	run -1 limited ds-frame diff a b
	assert_output --partial plan.placement
	frames write b 'if kind == "plan": data["weights"][5] = 1.5'
	run -1 limited ds-frame diff a b
	assert_output --partial plan.weights
	frames write b 'if kind == "load" and n == 4: data["counts"][7] += 1'
	run -1 limited ds-frame diff a b
	assert_output --partial load.counts
	frames write b 'if kind == "load" and n == 4: meta["sent_bytes"][1] = 7'
	run -1 limited ds-frame diff a b
	assert_output --partial 'sent_bytes[1]'
}

@test "what is wrong in a load or a plan is refused with 65: where, and what it is" {
	wrong "frame 7 (plan): 'placement' of layer 1, rank 2, slot 0 is expert 4, not -1 to 3" 'if kind == "plan": data["placement"][10] = 4'
	wrong "'placement' of layer 1 has no slot for expert 3" 'if kind == "plan": data["placement"][10] = 0'
	wrong "'weights' of layer 0, rank 1, slot 0" 'if kind == "plan": data["weights"][2] = float("nan")'
	wrong "'placement' is not I32 [layer 2, rank 3, slot 3]" 'if kind == "plan": meta["slots"] = 3'
	wrong "'placement' is not I32" 'if kind == "plan": tensors[0][1] = "U32"; data["placement"] = [x & 3 for x in data["placement"]]'
	wrong "'placement' is missing" 'if kind == "plan": del tensors[0]'
	wrong "'epoch' is missing" 'if kind == "plan": del meta["epoch"]'
	wrong "'ranks' is 0" 'if kind == "plan": meta["ranks"] = 0'
	wrong "frame 3 (load): 'counts' of layer 4, expert 2 is -1" 'if kind == "load" and n == 2: data["counts"][6] = -1'
	wrong "'received' is not I64 [layer 2, expert 5]" 'if kind == "load": meta["experts"] = 5; data["counts"] += [0, 0]; tensors[0][3] = [2, 5]'
	wrong "'waited_ns' has 2 entries for a world of 3" 'if kind == "load": meta["waited_ns"].pop()'
	wrong "'rank' is 3, not within 0 to 2" 'if kind == "load" and n == 5: meta["rank"] = 3'
	wrong "'sent_bytes' holds something" 'if kind == "load": meta["sent_bytes"][1] = -1'
	refused 65 "'bad': frame 1 (load): 'sent_bytes'" ds-frame stat bad
}

@test "what the library writes is what the manual says" {
	"$DS_BUILD/tests/test_messages_unit" --sample s
	run -0 limited ds-frame check s
	frames read s >said
	"$PYTHON" - <<-'END'
		import json
		plan, load = [json.loads(line) for line in open("said")]
		dims, shape = ["layer", "rank", "slot"], [2, 3, 2]
		weights = plan.pop("weights")
		assert plan == {"type": "plan", "flags": 0, "stream": 0, "epoch": 7, "layers": 2, "experts": 4, "ranks": 3, "slots": 2,
		                "placement": [dims, shape, [3, 0, 1, -1, 2, 0, -1, -1, 0, 1, 3, 2]]}, plan
		assert weights[:2] == [dims, shape] and weights[2][:3] == [5, 3, 1], weights
		dims, shape = ["layer", "expert"], [2, 4]
		assert load == {"type": "load", "flags": 4, "stream": 0, "rank": 2, "world": 3, "epoch": 4, "plan": 5, "t_ns": 6, "interval_ns": 7,
		                "steps": 8, "rows": 9, "layer": 3, "layers": 2, "experts": 4, "sent_bytes": [0, 1, 1 << 31],
		                "received_bytes": [0, 2**64 - 1, 5], "waited_ns": [0, 3, 1 << 60],
		                "counts": [dims, shape, [i << 40 for i in range(8)]], "received": [dims, shape, [8 - i for i in range(8)]]}, load
	END
}
