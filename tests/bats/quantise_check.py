#!/usr/bin/python3
"""Checks a quantised model against the one it was made of, by arithmetic of its own.

    quantise_check.py FROM TO [ue8m0]      TO is FROM in FP8
    quantise_check.py --back FROM TO       TO is FROM, which is FP8, in BF16
    quantise_check.py --same A B           the same tensors with the same bytes, wherever they lie
    quantise_check.py --extra DIR          adds a tensor to a model of one file that is no part of it
"""
import array
import bisect
import glob
import json
import math
import os
import struct
import sys

CODES = [m * 2.0 ** -9 if e == 0 else (8 + m) * 2.0 ** (e - 10) for e in range(16) for m in range(8)][:127]
LINEAR = ("q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def tensors(d):
    out, files = {}, sorted(glob.glob(d + "/*.safetensors"))
    index = d + "/model.safetensors.index.json"
    where = json.load(open(index))["weight_map"] if os.path.exists(index) else None
    for path in files:
        data = open(path, "rb").read()
        n = struct.unpack("<Q", data[:8])[0]
        for name, t in json.loads(data[8:8 + n]).items():
            if name == "__metadata__":
                continue
            assert where is None or where[name] == os.path.basename(path), name
            begin, end = t["data_offsets"]
            assert (8 + n + begin) % {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}.get(t["dtype"], 1) == 0, f"{name} lies at an odd place"
            out[name] = (t["dtype"], t["shape"], data[8 + n + begin:8 + n + end], os.path.basename(path))
    assert where is None or set(where) == set(out)
    return out


def values(t):
    dtype, _, data, _ = t
    if dtype == "F32":
        return array.array("f", data)
    if dtype == "F16":
        return struct.unpack(f"<{len(data) // 2}e", data)
    return array.array("f", b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2)))


def code(x):
    """The nearest of CODES, ties to the even one."""
    a = abs(x)
    hi = min(bisect.bisect_left(CODES, a), 126)
    lo = max(hi - 1, 0)
    down, up = a - CODES[lo], CODES[hi] - a
    best = hi if a >= CODES[126] or up < down or (up == down and hi % 2 == 0) else lo
    return best | (0x80 if math.copysign(1, x) < 0 else 0)


def linear(name):
    parts = name.split(".")
    return len(parts) > 2 and parts[-1] == "weight" and parts[-2] in LINEAR


def check_blocks(name, x, q, scales, ue8m0):
    rows, cols = q[1]
    width = -(-cols // 128)
    assert scales[1] == [-(-rows // 128), width], name
    assert scales[3] == q[3], f"{name} and its scales are in two files"
    s = values(scales)
    for r0 in range(0, rows, 128):
        for c0 in range(0, cols, 128):
            at = [r * cols + c for r in range(r0, min(r0 + 128, rows)) for c in range(c0, min(c0 + 128, cols))]
            scale = f32(max(abs(x[i]) for i in at) / 448)
            if ue8m0 and scale:
                scale = 2.0 ** math.ceil(math.log2(scale))
            scale = scale or 1.0
            assert s[r0 // 128 * width + c0 // 128] == scale, (name, r0, c0)
            for i in at:
                assert q[2][i] == code(f32(x[i] / scale)), (name, i, x[i], scale, q[2][i])


def check(source, made, ue8m0):
    a, b = tensors(source), tensors(made)
    want = set(a) | {n + "_scale_inv" for n in a if linear(n)}
    assert set(b) == want, set(b) ^ want
    for name, t in a.items():
        if linear(name):
            assert b[name][:2] == ("F8_E4M3", t[1]) and b[name + "_scale_inv"][0] == "F32", name
            check_blocks(name, values(t), b[name], b[name + "_scale_inv"], ue8m0)
        else:
            assert b[name][:3] == t[:3], f"{name} was not copied"
    c, d = (json.load(open(p + "/config.json")) for p in (source, made))
    quant = d.pop("quantization_config")
    assert quant.pop("scale_fmt", None) == ("ue8m0" if ue8m0 else None)
    assert quant == {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}
    assert c == d, "config.json changed elsewhere"


def check_back(source, made):
    a, b = tensors(source), tensors(made)
    assert set(b) == {n for n in a if not n.endswith("_scale_inv")}
    for name, t in b.items():
        if a[name][0] != "F8_E4M3":
            assert t[:3] == a[name][:3], name
            continue
        (rows, cols), s, width = t[1], values(a[name + "_scale_inv"]), -(-t[1][1] // 128)
        assert t[:2] == ("BF16", a[name][1])
        for i, (c, v) in enumerate(zip(a[name][2], struct.unpack(f"<{rows * cols}H", t[2]))):
            x = CODES[c & 0x7f] * s[i // cols // 128 * width + i % cols // 128]
            bits = struct.unpack("<I", struct.pack("<f", x))[0]
            assert v == (bits + 0x7fff + (bits >> 16 & 1)) >> 16 | (c & 0x80) << 8, (name, i)
    assert "quantization_config" not in json.load(open(made + "/config.json"))


def extra(d):
    path = d + "/model.safetensors"
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    head, body = json.loads(data[8:8 + n]), data[8 + n:]
    body += bytes(-len(body) % 8)
    head["model.extra"] = {"dtype": "F64", "shape": [2, 3], "data_offsets": [len(body), len(body) + 48]}
    pad = len(body) - max(t["data_offsets"][1] for k, t in head.items() if k not in ("__metadata__", "model.extra"))
    if pad:
        head["model.pad"] = {"dtype": "U8", "shape": [pad], "data_offsets": [len(body) - pad, len(body)]}
    body += struct.pack("<6d", *range(6))
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + body)


def main():
    if sys.argv[1] == "--back":
        check_back(*sys.argv[2:])
    elif sys.argv[1] == "--same":
        a, b = (tensors(d) for d in sys.argv[2:])
        assert {n: t[:3] for n, t in a.items()} == {n: t[:3] for n, t in b.items()}
    elif sys.argv[1] == "--extra":
        extra(sys.argv[2])
    else:
        check(sys.argv[1], sys.argv[2], sys.argv[3:] == ["ue8m0"])


main()
