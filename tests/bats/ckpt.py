#!/usr/bin/python3
"""A checkpoint with one thing wrong: ckpt.py FROM TO EDIT...

Files that no edit touches become symbolic links.  Edits, where NAME is a tensor:
    drop:NAME             without it (in the shard's header and the index)
    dtype:NAME:F16        declared as another type
    shape:NAME:1,2        declared as another shape
    offset:NAME:BYTES     its data declared to lie elsewhere by so much
    nan:NAME              its first element is NaN
    unlist:NAME           left out of the index only
    bf16:PART             all F8_E4M3 tensors with PART in their names made BF16, all 0.0117
    truncate:FILE:BYTES   the file cut so much shorter
    config:KEY:JSON       a key of config.json ("" removes it)
"""
import json
import os
import struct
import sys

NAN = {"F32": struct.pack("<f", float("nan")), "BF16": b"\xc0\x7f", "F16": b"\x00\x7e", "F8_E4M3": b"\x7f"}


def read_shard(path):
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + n]), bytearray(data[8 + n:])


def write_shard(path, header, data):
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    os.unlink(path)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def widen(path, part):
    header, data = read_shard(path)
    out = bytearray()
    for name, entry in sorted(header.items(), key=lambda e: e[1].get("data_offsets", [0])[0]):
        if name == "__metadata__":
            continue
        lo, hi = entry["data_offsets"]
        chunk = data[lo:hi]
        if part in name and entry["dtype"] == "F8_E4M3":
            entry["dtype"], chunk = "BF16", b"\x40\x3c" * len(chunk)
        entry["data_offsets"] = [len(out), len(out) + len(chunk)]
        out += chunk
    write_shard(path, header, out)


def replace(path, text):
    os.unlink(path)
    with open(path, "w") as f:
        f.write(text)


def edit_tensor(to, what, name, value):
    for shard in sorted(f for f in os.listdir(to) if f.endswith(".safetensors")):
        path = os.path.join(to, shard)
        header, data = read_shard(path)
        if name not in header:
            continue
        entry = header[name]
        if what == "drop":
            lo, hi = header.pop(name)["data_offsets"]
            del data[lo:hi]
            for other in header.values():
                if other.get("data_offsets", [0])[0] >= hi:
                    other["data_offsets"] = [v - (hi - lo) for v in other["data_offsets"]]
            index = os.path.join(to, "model.safetensors.index.json")
            if os.path.exists(index):
                table = json.load(open(index))
                del table["weight_map"][name]
                replace(index, json.dumps(table))
        elif what == "dtype":
            entry["dtype"] = value
        elif what == "shape":
            entry["shape"] = [int(v) for v in value.split(",")]
        elif what == "offset":
            entry["data_offsets"] = [v + int(value) for v in entry["data_offsets"]]
        elif what == "nan":
            at, bits = entry["data_offsets"][0], NAN[entry["dtype"]]
            data[at:at + len(bits)] = bits
        write_shard(path, header, data)
        return
    sys.exit(f"ckpt.py: no tensor {name}")


def main():
    source, to, edits = sys.argv[1], sys.argv[2], sys.argv[3:]
    os.makedirs(to)
    for f in os.listdir(source):
        if not f.startswith("."):
            os.symlink(os.path.abspath(os.path.join(source, f)), os.path.join(to, f))
    for e in edits:
        what, name, value = (e.split(":", 2) + [""])[:3]
        path = os.path.join(to, name)
        if what == "truncate":
            data = open(path, "rb").read()
            os.unlink(path)
            open(path, "wb").write(data[:-int(value)])
        elif what == "unlist":
            path = os.path.join(to, "model.safetensors.index.json")
            table = json.load(open(path))
            del table["weight_map"][name]
            replace(path, json.dumps(table))
        elif what == "bf16":
            for shard in sorted(f for f in os.listdir(to) if f.endswith(".safetensors")):
                widen(os.path.join(to, shard), name)
        elif what == "config":
            path = os.path.join(to, "config.json")
            config = json.load(open(path))
            if value:
                config[name] = json.loads(value)
            else:
                del config[name]
            replace(path, json.dumps(config))
        else:
            edit_tensor(to, what, name, value)


if __name__ == "__main__":
    main()
