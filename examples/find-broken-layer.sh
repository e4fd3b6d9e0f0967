#!/bin/sh
# find-broken-layer.sh [MODEL [TENSOR]]: a checkpoint that loads and answers, but wrongly: which layer is to blame?
#
# Makes a copy of a small model (MODEL, by default the example model) with one FP8 block scale wrong: the first of TENSOR, by default
# layer 1's o_proj, is made four times as large.  Nothing that looks at the checkpoint alone can tell: every number in it is finite.
# Then five commands find it, by comparing what both compute:
#
#   1  a question, as a request
#   2  the good model works on it, and every tensor on the way is dumped
#   3  so does the broken one
#   4  the dumps are compared: the table follows the computation, and names the first tensor that differs
#   5  that tensor as the broken model computed it
#
# The first tensor that differs tells the weight: if layer.1.attn_core (core attention) is the same and layer.1.attn_out (after o_proj) is
# not, then o_proj of layer 1 is wrong.  With another engine's dump in the place of the good model's, the same commands find where two
# implementations part: `ds-frame unpack` reads its safetensors file, `ds-frame diff --tol 1e-3` allows for its other order of sums.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
model=${1:-$here/models/tiny-r1}
tensor=${2:-model.layers.1.self_attn.o_proj.weight_scale_inv}
if [ -n "${DS_BUILD-}" ]; then
	PATH=$(cd "$DS_BUILD" && pwd)/bin:$PATH
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# header FILE: the JSON header of a safetensors file; its length is the number in the first eight bytes.
header_bytes() {
	od -A n -t u8 -N 8 "$1" | tr -d ' '
}
header() {
	tail -c +9 "$1" | head -c "$(header_bytes "$1")"
}

# where FILE TENSOR: the byte of the file at which the tensor's data begins, nothing if it is not in there.
where() {
	begin=$(header "$1" | sed -n "s/.*\"$2\":{[^}]*\"data_offsets\":\[\([0-9]*\),.*/\1/p")
	[ -z "$begin" ] || echo $((8 + $(header_bytes "$1") + begin))
}

# break_scale FILE BYTE: a float32 there becomes four times as large: its exponent, in the upper bits, grows by two.
break_scale() {
	bits=$(od -A n -t u4 -j "$2" -N 4 "$1" | tr -d ' ')
	bits=$((bits + 0x01000000))
	bytes=$(printf '\\%03o\\%03o\\%03o\\%03o' $((bits & 255)) $((bits >> 8 & 255)) $((bits >> 16 & 255)) $((bits >> 24 & 255)))
	printf '%b' "$bytes" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}

mkdir "$work/broken"
cp "$model"/*.json "$model"/*.safetensors "$work/broken"
chmod u+w "$work/broken"/*
found=
for file in "$work/broken"/*.safetensors; do
	at=$(where "$file" "$tensor")
	[ -z "$at" ] || {
		break_scale "$file" "$at"
		found=$file
	}
done
if [ -z "$found" ]; then
	echo "find-broken-layer.sh: no tensor '$tensor' in '$model'" >&2
	exit 66
fi

# run COMMAND: shows it, then runs it, within the working directory, where the model is called good.
ln -s "$(cd "$model" && pwd)" "$work/good"
cd "$work"
run() {
	printf '$ %s\n' "$1"
	sh -c "$1"
}

run "echo 'What is 348 + 977?' | ds-token -m good encode --chat -o request"
run "ds-prefill -m good   --dump '*' --dump-to good.frames   -o good.kv   request"
run "ds-prefill -m broken --dump '*' --dump-to broken.frames -o broken.kv request"
run "ds-frame diff good.frames broken.frames" >table || [ $? -eq 1 ]
cat table
first=$(sed -n 's/^first difference: \([^,]*\),.*/\1/p' table)
run "ds-frame filter -p $first broken.frames | ds-frame dump | grep '\"type\":\"tensor\"'"
echo "the first tensor that differs is $first"
