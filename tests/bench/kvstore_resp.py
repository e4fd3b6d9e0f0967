#!/usr/bin/python3
"""Values of 70 KB by redis-benchmark, 50 connections, from ds-kvstore --resp and from redis-server in turn: requests a
second, the median of the ratios of each round (goal: at least 1), CPU time of the server for a request.  What is set is
in a file then, with ds-kvstore; with redis-server only where it keeps its append-only file (without fsync, as here)."""
import csv
import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import time

BUILD = os.environ.get("DS_BUILD", "build")
STORE = os.path.join(BUILD, "bin", "ds-kvstore")
VALUE, KEYS, CONNECTIONS, ROUNDS = 71680, 1000, 50, 5
REQUESTS = int(os.environ.get("KV_REQUESTS", "20000"))
KINDS = ("unix", "tcp")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A server at a unix socket and at a port; the socket's path tells which."""

    def __init__(self, work, name, command):
        self.sock = os.path.join(work, name + ".sock")
        self.port = free_port()
        self.log = open(os.path.join(work, name + ".log"), "wb")
        self.processes = [subprocess.Popen(c, stdout=self.log, stderr=self.log) for c in command(self)]
        for where in KINDS:
            self.wait(where)

    def where(self, kind):
        return ["-s", self.sock] if kind == "unix" else ["-h", "127.0.0.1", "-p", str(self.port)]

    def wait(self, kind):
        for _ in range(1000):
            reply = subprocess.run(["redis-cli", *self.where(kind), "PING"], capture_output=True, text=True)
            if reply.stdout.strip() == "PONG":
                return
            time.sleep(0.01)
        raise SystemExit(f"kvstore_resp: no server at {self.where(kind)}: {open(self.log.name).read()[-500:]}")

    def cpu(self):
        ticks = 0
        for p in self.processes:
            with open(f"/proc/{p.pid}/stat") as f:
                fields = f.read().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def stop(self):
        for p in self.processes:
            p.terminate()
            p.wait()


def redis(work, *how):
    def command(server):
        return [["redis-server", "--port", str(server.port), "--unixsocket", server.sock, "--dir", work, "--save", "",
                 *how]]

    return command


def ours(work):
    def command(server):
        where = os.path.join(work, "store")
        return [[STORE, "--dir", where, "--capacity", "4G", "--resp", address]
                for address in (f"unix:{server.sock}", f"tcp:127.0.0.1:{server.port}")]

    return command


def measure(server, kind, test):
    """Requests a second, and seconds of the server's CPU for each."""
    cpu = server.cpu()
    out = subprocess.run(
        ["redis-benchmark", *server.where(kind), "-t", test, "-d", str(VALUE), "-c", str(CONNECTIONS), "-n",
         str(REQUESTS), "-r", str(KEYS), "--csv"], capture_output=True, text=True, check=True).stdout
    rows = [row for row in csv.reader(out.splitlines()) if row and row[0].lower().startswith(test)]
    return float(rows[0][1]), (server.cpu() - cpu) / REQUESTS


def bench(work):
    servers = {
        "ds-kvstore": Server(work, "ours", ours(work)),
        "redis-server": Server(work, "redis", redis(work, "--appendonly", "no")),
        "redis-server, append-only file": Server(
            work, "appending", redis(work, "--appendonly", "yes", "--appendfsync", "no",
                                     "--auto-aof-rewrite-percentage", "0")),
    }
    for s in servers.values():
        measure(s, "unix", "set")  # every key is there
    print(f"{VALUE} bytes, {CONNECTIONS} connections, {KEYS} keys     requests/s    GB/s  CPU us   ds-kvstore to this")
    for kind in KINDS:
        for test in ("get", "set"):
            found = {name: [] for name in servers}
            for _ in range(ROUNDS):
                for name, s in servers.items():
                    if test == "set" or "file" not in name:
                        found[name].append(measure(s, kind, test))
            for name, values in found.items():
                if not values:
                    continue
                rate = statistics.median(v[0] for v in values)
                line = f"{kind:5}{test:4} {name:30} {rate:11.0f} {rate * VALUE * 1e-9:7.2f}"
                line += f" {statistics.median(v[1] for v in values) * 1e6:7.1f}"
                if name != "ds-kvstore":
                    ratio = statistics.median(b[0] / a[0] for a, b in zip(values, found["ds-kvstore"]))
                    line += f"   {ratio:5.2f}" + (", goal 1" if "file" not in name else "")
                print(line, flush=True)
    for s in servers.values():
        s.stop()


def main():
    if not all(shutil.which(p) for p in ("redis-server", "redis-benchmark", "redis-cli")):
        print("SKIP: no redis-server (Debian: redis-server, redis-tools)")
    elif not os.access(STORE, os.X_OK):
        print(f"SKIP: no {STORE}")
    else:
        where = os.environ.get("TMPDIR") or os.path.join(BUILD, "bench-data")
        os.makedirs(where, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="ds-bench-", dir=where) as work:
            bench(os.path.abspath(work))


if __name__ == "__main__":
    main()
