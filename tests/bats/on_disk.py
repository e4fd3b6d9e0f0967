"""on_disk.py TRACE NAME: by strace -f -y, every file of NAME (a file, or a directory with files) was synced, then renamed to NAME, then
NAME's directory was synced."""
import os
import re
import sys

name = sys.argv[2]
before, after, tmp = set(), set(), None
for line in open(sys.argv[1]):
    sync = re.search(r"fsync\(\d+<(.*?)>\) += 0", line)
    if sync:
        (after if tmp else before).add(sync[1])
    rename = re.search(r'rename(?:at2)?\(.*?"(.*?)", .*?"(.*?)"(?:, \w+)?\) += 0', line)
    if rename and rename[2] == name:
        tmp = rename[1]
assert tmp, f"nothing was renamed to {name}"
made = {tmp} | ({f"{tmp}/{f}" for f in os.listdir(name)} if os.path.isdir(name) else set())
assert made <= before, f"not synced before the rename: {made - before}"
assert os.path.dirname(name) in after, f"synced after the rename: {after}"
