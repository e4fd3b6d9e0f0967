"""Captures and safetensors files made by hand, for tests of ds-frame."""
import json
import struct

import dsf

CODES = {"F32": "f", "F16": "e", "U32": "I", "I32": "i", "I64": "q", "U8": "B", "F8_E4M3": "B"}


def raw(dtype, values):
    if dtype == "BF16":
        return b"".join(struct.pack("<f", v)[2:] for v in values)
    return struct.pack(f"<{len(values)}{CODES[dtype]}", *values)


def rows(name, first, count):
    return [dsf.stream_id(name), first, count, name]


class Capture:
    def __init__(self, path):
        self.file = open(path, "wb")
        self.w = dsf.Writer(self.file)
        self.w.hello()

    def tensor(self, point, segments, dtype, columns, values, **more):
        """Rows of a point: "layer.3.out", or of no layer."""
        parts = point.split(".", 2)
        layered = parts[0] == "layer" and len(parts) == 3 and parts[1].isdigit()
        where = {"point": parts[2], "layer": int(parts[1])} if layered else {"point": point}
        data = raw(dtype, values)
        self.w.write(13, segments[0][0], {**where, "rows": segments, "tensors": [
            [point, dtype, ["token", "dim"], [sum(s[2] for s in segments), columns], 0, len(data), None]], **more}, data)
        return self

    def token(self, name, index, token, **more):
        self.w.write(5, dsf.stream_id(name), {"index": index, "id": token, **more})
        return self

    def end(self):
        self.w.end()
        self.file.close()


def safetensors(path, tensors):
    """tensors: (name, dtype, shape, bytes), also two of one name."""
    entries, data = [], b""
    for name, dtype, shape, b in tensors:
        entries.append(f"{json.dumps(name)}:" + json.dumps({"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(b)]}))
        data += b
    header = ("{" + ",".join(entries) + "}").encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + data)
