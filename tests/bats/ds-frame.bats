#!/usr/bin/env bats

setup() {
	load helper
	T=$BATS_TEST_TMPDIR
	PYTHONDONTWRITEBYTECODE=1
	export PYTHONDONTWRITEBYTECODE
}

teardown() {
	end_background
}

make_capture() {
	"$PYTHON" tests/bats/make_capture.py "$1" "$T/$1"
}

# A capture made by our own writer, with plain and compressed payloads and hashes.
own_capture() {
	"$DS_BUILD/tests/test_frame" --sample "$T/own"
}

bad() {
	make_capture "$1"
	refused "$2" "$3" ds-frame check "$T/$1"
}

@test "check: a sound capture, its summary, from a file and from stdin" {
	make_capture sound
	run -0 limited ds-frame check "$T/sound"
	assert_output "$T/sound: 5 frames, $(stat -c %s "$T/sound") bytes, ok"
	run -0 limited ds-frame check <"$T/sound"
	assert_output "<stdin>: 5 frames, $(stat -c %s "$T/sound") bytes, ok"
	own_capture
	run -0 limited ds-frame check "$T/own" "$T/sound"
	assert_equal "${#lines[@]}" 2
}

@test "check: a higher minor version is accepted, a higher major one refused with 76" {
	make_capture minor
	run -0 limited ds-frame check "$T/minor"
	bad major 76 "version '2'"
}

@test "check: what is wrong is refused with 65 and one line" {
	bad no_hello 65 hello
	bad two_hellos 65 hello
	bad unknown_type 65 'unknown type 99'
	bad unknown_flag 65 flags
	bad no_end 65 truncated
	bad end_counts 65 counts
	bad end_bytes 65 counts
	bad after_end 65 'after the end'
	bad text 65 'no DSF1 frame'
	refused 65 truncated ds-frame check /dev/null
}

@test "check: hostile meta is refused before it is parsed" {
	bad depth_bomb 65 deeper
	bad array_bomb 65 elements
	bad map_bomb 65 elements
	bad not_utf8 65 UTF-8
	bad number_key 65 key
	bad no_map 65 map
}

@test "check: hostile lengths take no memory" {
	make_capture huge_payload
	make_capture huge_meta
	not_sanitized "address sanitizer needs its own memory"
	(
		ulimit -v 60000
		refused 65 limit ds-frame check "$T/huge_payload"
		refused 65 limit ds-frame check "$T/huge_meta"
		refused 65 truncated ds-frame --max-frame 8G check "$T/huge_payload"
	)
}

@test "check: bad tensor rows and hashes" {
	bad beyond 65 'beyond the payload'
	bad wrong_size 65 size
	bad overflow 65 large
	bad no_scale 65 "'s'"
	bad bad_dtype 65 dtype
	bad same_name 65 "'t'"
	bad bad_hash 65 hash
	bad tensors_text 65 tensors
}

@test "check: all files are checked, the first error is the exit status" {
	make_capture sound
	make_capture no_end
	run -65 limited ds-frame check "$T/no_end" "$T/sound" "$T/missing"
	assert_line --partial "$T/sound: 5 frames"
	assert_line --partial "ds-frame: cannot open '$T/missing'"
	refused 66 "cannot open '$T/missing': No such file" ds-frame check "$T/missing"
	refused 66 'is a directory' ds-frame check "$T"
}

@test "check: cut anywhere it is truncated: 65, one line, never silence" {
	own_capture
	run -0 timeout 280 "$PYTHON" tests/bats/cut_capture.py cut "${CUTS:-1000}" "$T/own"
	assert_output --partial ' 0 wrong'
}

@test "check: a flipped bit anywhere is found" {
	own_capture
	run -0 timeout 280 "$PYTHON" tests/bats/cut_capture.py flip 300 "$T/own"
	assert_output --partial ' 0 wrong'
}

@test "python3-msgpack reads a capture and finds the same values" {
	"$DS_BUILD/tests/test_frame" --sample "$T/plain" plain
	"$PYTHON" tests/bats/read_capture.py "$T/plain" >"$T/theirs"
	limited ds-frame dump "$T/plain" >"$T/dump"
	"$PYTHON" tests/bats/read_capture.py --dump "$T/dump" >"$T/ours"
	run -0 diff "$T/theirs" "$T/ours"
	[ "$(wc -l <"$T/ours")" -eq 5 ]
}

@test "dump: one JSON line a frame, tensors summarised" {
	make_capture sound
	limited ds-frame dump "$T/sound" >"$T/dump"
	run -0 "$PYTHON" - "$T/dump" <<-'END'
		import json, sys
		f = [json.loads(l) for l in open(sys.argv[1])]
		assert [x["type"] for x in f] == ["hello", "tensor", "tensor", "end"], f
		assert f[1]["stream"] == "0000000000000005" and f[2]["number"] == 3 and f[2]["meta"] == {"odd": {"a": [1]}}
		t = f[1]["tensors"][0]
		assert (t["min"], t["max"], t["nan"], t["first"]) == (-2.0, 1.5, 1, [1.5, None, -2.0, 0.25]), t
		assert abs(t["mean"] - -0.25 / 3) < 1e-9 and t["shape"] == [4] and len(t["xxh"]) == 16
	END
}

@test "dump: whole numbers with all their digits, in meta and of tensors" {
	"$PYTHON" - "$DS_ROOT/tests/bats" "$T/big" <<-'END'
		import struct, sys
		sys.path.insert(0, sys.argv[1])
		sys.dont_write_bytecode = True
		import dsf
		with open(sys.argv[2], "wb") as f:
		    out = dsf.Writer(f)
		    out.hello()
		    data = struct.pack("<3q", 9007199254740993, -9223372036854775807, 5)
		    out.write(13, 7, {"t_ns": 1795999999123456789, "tensors": [["x", "I64", ["n"], [3], 0, 24, None], ["y", "I64", ["n"], [0], 0, 0, None]]}, data)
		    out.end()
	END
	run -0 limited ds-frame dump "$T/big"
	assert_output --partial '"t_ns":1795999999123456789'
	assert_output --partial '"min":-9223372036854775807,"max":9007199254740993,'
	assert_output --partial '"first":[9007199254740993,-9223372036854775807,5]'
	assert_output --partial '"shape":[0],"min":null,"max":null,'
}

@test "dump: goes on after a wrong payload, and tells of it" {
	make_capture bad_hash
	run -65 limited ds-frame dump "$T/bad_hash"
	assert_line --partial '"type":"end"'
	assert_line --partial 'ds-frame: frame 1'
}

@test "dump: shows what came before the cut" {
	make_capture no_end
	run -65 limited ds-frame dump "$T/no_end"
	assert_line --partial '"type":"hello"'
	assert_line --partial truncated
}

@test "output that cannot be written: 74; a reader that goes: 141" {
	make_capture sound
	for command in dump check; do
		run -74 sh -c "limited() { timeout 20 \"\$@\"; }; limited ds-frame $command '$T/sound' >/dev/full"
		assert_output --partial 'cannot write'
	done
	refused 74 'cannot write' sh -c 'exec ds-frame check "$1" >&-' sh "$T/sound"
}

@test "usage errors: 64" {
	refused 64 'no command' ds-frame
	refused 64 "unknown command 'frob'" ds-frame frob
	refused 64 'one file' ds-frame dump a b
	refused 64 'max-frame' ds-frame --max-frame x check
	run -0 limited ds-frame --help
	assert_line --partial dump
}
