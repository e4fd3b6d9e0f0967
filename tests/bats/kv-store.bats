# ds-prefill and ds-decode with a store of KV blocks: what is found there is what would be computed, to the byte; whatever happens to the
# store, the answers are the same.
load helper

DSF=$DS_ROOT/tests/bats/dsf.py
ANSWERS=$DS_ROOT/tests/bats/answers.py
TALK=$DS_ROOT/tests/bats/kv_talk.py
if [ -n "$DS_SANITIZE" ]; then MANY=8; else MANY=40; fi

# Prompts of 1 to 400 tokens, many of which begin alike, their KV and answers as they are without any cache.
setup_file() {
	cd "$BATS_FILE_TMPDIR" || return 1
	(cd "$DS_ROOT" && "$PYTHON" "$ANSWERS" mix "$MANY") | "$PYTHON" "$DSF" requests >mix
	borders | "$PYTHON" "$DSF" requests >borders
	for mtp in '' --mtp; do
		for requests in mix borders; do
			# shellcheck disable=SC2086 # perhaps nothing
			limited ds-prefill -m "$DS_MODEL" $mtp --no-prefix-cache "$requests" >kv
			"$PYTHON" "$TALK" handed kv >"$requests.want$mtp"
		done
	done
	limited ds-decode -m "$DS_MODEL" --no-prefix-cache mix | "$PYTHON" "$ANSWERS" table --no-hits - >answers.want
	[ "$(grep -c ' done ' answers.want)" -eq "$MANY" ]
}

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
	ln -s "$BATS_FILE_TMPDIR"/{mix,borders,mix.want*,borders.want*,answers.want} .
}

teardown() {
	end_background
}

# borders: prompts that end at, before and behind the ends of blocks, each twice.
borders() {
	"$PYTHON" - <<-'END'
		import json
		base = [(7 * t) % 1000 + 3 for t in range(400)]
		n = 0
		for again in range(2):
		    for at in (63, 64, 65, 127, 128, 129, 192, 193, 256):
		        for more in ([], [9] * 70):
		            print(json.dumps({"id": f"b{n}", "ids": base[:at] + more, "max_tokens": 2}))
		            n += 1
	END
}

prefill() {
	limited ds-prefill -m "$DS_MODEL" "$@"
}

decode() {
	limited ds-decode -m "$DS_MODEL" "$@"
}

# handed REQUESTS WANT [OPTION...]: what ds-prefill hands over is as wanted; prints the sum of the hits.
handed() {
	local requests=$1 want=$2
	shift 2
	prefill "$@" "$requests" >handed.kv 2>handed.err || { cat handed.err >&2; return 1; }
	"$PYTHON" "$TALK" handed handed.kv | cmp "$want" - >&2
	"$PYTHON" "$TALK" hits handed.kv >handed.hits
	awk '{ n += $3 } END { print n }' handed.hits
}

# possible REQUESTS [BLOCK]: the sum of hits where everything is in the store.
possible() {
	"$PYTHON" "$TALK" hits handed.kv | awk -v block="${1:-64}" '{ n += int(($2 - 1) / block) * block } END { print n }'
}

# store NAME [OPTION...]: a ds-kvstore at unix:NAME.sock on directory NAME; its pid is in $STORE.
store() {
	local name=$1
	shift
	rm -f "$name.sock"
	background ds-kvstore -l "unix:$name.sock" --dir "$name" "$@"
	wait_socket "$name.sock"
	STORE=$(pgrep -P "$BG" ds-kvstore)
}

@test "a directory, a new process each time: every complete block hits, KV frames equal to the byte, with MTP and without" {
	for mtp in '' --mtp; do
		for requests in mix borders; do
			# shellcheck disable=SC2086 # perhaps nothing
			for again in 1 2; do
				hits=$(handed "$requests" "$requests.want$mtp" --kv dir:store $mtp --no-prefix-cache)
				[ "$again" -eq 1 ] || [ "$hits" -eq "$(possible)" ]
				[ "$hits" -gt 0 ] || [ "$again" -eq 1 ]
			done
		done
	done
	# n tokens of a prompt hit 64 (n - 1) / 64: at least one is computed
	awk '$3 != int(($2 - 1) / 64) * 64' handed.hits | tee wrong
	[ ! -s wrong ]
}

@test "other chunks, one request at a time, little KV memory, blocks of 128 and 192, no cache in memory: the same bytes" {
	local mtp block
	for options in '--chunk 7 --batch-tokens 20' '--max-batch 1' '--kv-memory 700K' '--kv-memory 900K --no-prefix-cache' '--kv-block 128' \
		'--kv-block 192 --kv-memory 900K --mtp'; do
		mtp=${options##* --mtp}
		[ "$mtp" = "$options" ] && mtp='' || mtp=--mtp
		block=$(sed -n 's/.*--kv-block \([0-9]*\).*/\1/p' <<<"$options")
		rm -rf store
		# shellcheck disable=SC2086 # a list
		handed mix "mix.want$mtp" --kv dir:store $options >/dev/null
		# shellcheck disable=SC2086 # a list
		hits=$(handed mix "mix.want$mtp" --kv dir:store $options)
		[ "$hits" -ge "$(possible "${block:-64}")" ] # memory may have part of a block
	done
}

@test "requests that begin alike, all at once: each block is fetched once, and written once" {
	"$PYTHON" - <<-'END' | "$PYTHON" "$DSF" requests >alike
		import json
		base = [(11 * t) % 1000 + 3 for t in range(200)]
		for n in range(40):
		    print(json.dumps({"id": f"a{n}", "ids": base + [n + 3] * 20, "max_tokens": 2}))
	END
	prefill --no-prefix-cache alike | "$PYTHON" "$TALK" handed /dev/stdin >alike.want
	handed alike alike.want --kv dir:store --stats >/dev/null
	grep -q '3 written, 0 there already, 0 not written' handed.err
	hits=$(handed alike alike.want --kv dir:store --stats)
	[ "$hits" -eq $((40 * 192)) ]
	grep -q ' 3 fetched, ' handed.err
}

@test "ds-decode computes prompts: the same answers with hits, with MTP and without" {
	for options in '' '--max-batch 4' '--max-batch 8 --kv-memory 900K' '--mtp 2 --mtp-always' '--no-prefix-cache'; do
		rm -rf store
		for again in 1 2; do
			# shellcheck disable=SC2086 # a list
			decode --kv dir:store $options mix 2>/dev/null >out
			"$PYTHON" "$ANSWERS" table --no-hits out | cmp answers.want -
		done
		[ "$("$PYTHON" "$TALK" hits out | awk '$3 > 0' | wc -l)" -gt $((MANY / 20)) ]
	done
}

# The fault: ds-decode decided when a prompt arrived that there was no room, and computed what the store had.
@test "ds-decode with little KV memory: prompts wait for room for what the store has, and all of it is fetched" {
	"$PYTHON" -c 'import json
for n in range(12): print(json.dumps({"id": f"r{n}", "ids": [(7 * t + n) % 1000 + 3 for t in range(600)], "max_tokens": 5}))' |
		"$PYTHON" "$DSF" requests >long
	decode --no-prefix-cache long | "$PYTHON" "$ANSWERS" table --no-hits - >long.want
	prefill --kv dir:store --no-prefix-cache long >/dev/null
	for cache in '' --no-prefix-cache; do
		# shellcheck disable=SC2086 # perhaps nothing
		decode --kv dir:store --kv-memory 800K --kv-timeout 9s $cache --stats long 2>said | "$PYTHON" "$ANSWERS" table --no-hits - | cmp long.want -
		has '108 blocks found, 108 fetched' <said
	done
}

@test "two models in one store, and another arithmetic: nothing of one is found by another" {
	other=$(golden v3-tiny-fp8)
	(cd "$DS_ROOT" && "$PYTHON" "$ANSWERS" mix "$MANY" --plain) | "$PYTHON" "$DS_ROOT/tests/bats/unit.py" fit "$other" | "$PYTHON" "$DSF" requests >fits
	limited ds-prefill -m "$other" --no-prefix-cache fits | "$PYTHON" "$TALK" handed /dev/stdin >fits.want
	prefill --no-prefix-cache fits | "$PYTHON" "$TALK" handed /dev/stdin >tiny.want
	prefill --no-prefix-cache --arith float32 fits | "$PYTHON" "$TALK" handed /dev/stdin >f32.want
	for again in 1 2; do
		limited ds-prefill -m "$other" --kv dir:store --no-prefix-cache fits >kv
		"$PYTHON" "$TALK" handed kv | cmp fits.want -
		[ "$again" -eq 2 ] || "$PYTHON" "$TALK" hits kv | awk '$3 { bad = 1 } END { exit bad }'
		hits=$(handed fits tiny.want --kv dir:store --no-prefix-cache)
		[ "$again" -eq 2 ] || [ "$hits" -eq 0 ]
		hits=$(handed fits f32.want --kv dir:store --no-prefix-cache --arith float32)
		[ "$again" -eq 2 ] || [ "$hits" -eq 0 ]
	done
	[ "$hits" -eq "$(possible)" ]
	# and other kernels, whose bits are others
	hits=$(DS_KERNELS=scalar handed fits <(DS_KERNELS=scalar prefill --no-prefix-cache fits | "$PYTHON" "$TALK" handed /dev/stdin) --kv dir:store --no-prefix-cache)
	[ "$hits" -eq 0 ]
}

# Weights that are alike wherever a few bytes of each tensor are looked at.
@test "a model that differs in one row of its embedding has blocks of its own, unless --kv-model says otherwise" {
	cp -R "$DS_MODEL" other
	"$PYTHON" - other <<-'END'
		import glob, json, struct, sys
		for path in glob.glob(sys.argv[1] + "/*.safetensors"):
		    with open(path, "r+b") as f:
		        n = struct.unpack("<Q", f.read(8))[0]
		        at = json.loads(f.read(n)).get("model.embed_tokens.weight")
		        if not at:
		            continue
		        width = at["shape"][1] * 2
		        assert at["dtype"] == "BF16"
		        f.seek(8 + n + at["data_offsets"][0] + 10 * width)
		        row = bytearray(f.read(width))
		        row[1::2] = bytes(b ^ 0x80 for b in row[1::2])
		        f.seek(-width, 1)
		        f.write(row)
		        break
		else:
		    raise SystemExit("no embedding")
	END
	[ "$(ds-model fingerprint other)" = "$(ds-model fingerprint "$DS_MODEL")" ]
	limited ds-prefill -m other --no-prefix-cache borders | "$PYTHON" "$TALK" handed /dev/stdin >other.want
	! cmp -s other.want borders.want
	handed borders borders.want --kv dir:store --no-prefix-cache
	limited ds-prefill -m other --kv dir:store --no-prefix-cache borders >kv
	"$PYTHON" "$TALK" handed kv | cmp other.want -
	prefill --kv dir:store --kv-model 'a name' --no-prefix-cache borders >kv
	"$PYTHON" "$TALK" hits kv | awk '$3 { bad = 1 } END { exit bad }'
	hits=$(handed borders borders.want --kv dir:store --kv-model 'a name' --no-prefix-cache)
	[ "$hits" -eq "$(possible)" ]
	refused 64 'is no name' ds-prefill -m "$DS_MODEL" --kv dir:store --kv-model '' /dev/null
}

@test "FP8: what is stored is smaller, what hits is near, and no exact block is taken for it" {
	handed mix mix.want --kv dir:exact --no-prefix-cache >/dev/null
	handed mix mix.want --kv dir:store --kv-dtype fp8 --no-prefix-cache >/dev/null
	[ "$(cat store/*.seg | wc -c)" -lt "$(($(cat exact/*.seg | wc -c) * 3 / 4))" ]
	prefill --kv dir:store --kv-dtype fp8 --no-prefix-cache mix >near
	[ "$("$PYTHON" "$TALK" hits near | awk '{ n += $3 } END { print n }')" -eq "$(possible)" ]
	! "$PYTHON" "$TALK" handed near | cmp -s mix.want - || return 1
	hits=$(handed mix mix.want --kv dir:store --no-prefix-cache) # the form is part of the key
	[ "$hits" -eq 0 ]
}

@test "options that make no sense, and addresses of no store, are refused" {
	refused 64 'no multiple of 64' ds-prefill -m "$DS_MODEL" --kv dir:store --kv-block 100 mix
	refused 64 "'fp4' is neither" ds-decode -m "$DS_MODEL" --kv dir:store --kv-dtype fp4 mix
	refused 64 'leave --kv out' ds-prefill -m "$DS_MODEL" --kv dir:store --kv-timeout 0 mix
	refused 64 'no address of a store' ds-prefill -m "$DS_MODEL" --kv nowhere mix
	refused 64 '--kv-block' ds-prefill -m "$DS_MODEL" --kv dir:store --kv-block 2048 mix
	for o in '--kv-block 128' '--kv-dtype fp8' '--kv-timeout 1s' '--kv-password-file mix'; do
		for program in ds-prefill ds-decode; do
			# shellcheck disable=SC2086 # two words
			refused 64 "${o% *} says nothing without --kv" "$program" -m "$DS_MODEL" $o mix
		done
	done
	refused 64 '--kv-password-file says nothing without --kv redis' ds-prefill -m "$DS_MODEL" --kv dir:store --kv-password-file mix mix
	refused 78 "cannot read the password file 'nosuch'" ds-decode -m "$DS_MODEL" --kv redis://localhost:1 --kv-password-file nosuch mix
}

@test "idle, with a store that is there and with one that is not: no CPU" {
	not_sanitized 'its runtime has threads of its own'
	store kv
	for kv in kv nobody; do
		rm -f pf.sock
		background ds-prefill -m "$DS_MODEL" -l unix:pf.sock --kv "unix:$kv.sock"
		wait_socket pf.sock
		limited "$PYTHON" "$TALK" send pf.sock <mix >/dev/null
		pid=$(pgrep -P "$BG" ds-prefill)
		sleep 0.3
		before=$(awk '{ print $14 + $15 }' "/proc/$pid/stat")
		sleep 2
		[ $(($(awk '{ print $14 + $15 }' "/proc/$pid/stat") - before)) -le 2 ] # ticks of 10 ms
		kill "$BG"
		wait "$BG"
	done
}

@test "a service: the store is killed, comes back, is frozen: the same bytes, one line for each change" {
	store kv
	background ds-prefill -m "$DS_MODEL" -l unix:pf.sock --kv unix:kv.sock --kv-timeout 500ms
	PREFILL=$BG
	ERR=$BG_ERR
	wait_socket pf.sock
	ask() {
		limited "$PYTHON" "$TALK" send pf.sock <mix >got || return 1
		"$PYTHON" "$TALK" handed got | cmp mix.want - || return 1
	}
	said() { # a line, within ten seconds
		local n=0
		until [ "$(grep -c "$1" "$ERR")" -ge "$2" ]; do
			n=$((n + 1))
			[ "$n" -lt 200 ] || { cat "$ERR" >&2; return 1; }
			sleep 0.05
		done
	}
	ask
	kill -9 "$STORE"
	ask
	said 'is lost' 1
	ask
	store kv
	said 'is back' 1
	ask
	kill -STOP "$STORE"
	begin=$(date +%s%N)
	ask
	[ -n "$DS_SANITIZE" ] || [ $((($(date +%s%N) - begin) / 1000000)) -lt 15000 ] # each request its own: 20 s
	said 'is lost' 2
	kill -CONT "$STORE"
	said 'is back' 2
	ask
	kill "$PREFILL"
	wait "$PREFILL"
	[ "$(wc -l <"$ERR")" -eq 4 ]
}
