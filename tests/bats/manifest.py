#!/usr/bin/python3
"""Checks a Kubernetes manifest without a cluster: every field is one that its kind has, of the type that it has, and none is missing that
must be there; and every option that a container gives to one of our programs is one of its options.

    manifest.py FILE

The kinds hold what the API reference says of the fields that we use (LeaderWorkerSet v1, core v1, networking v1), so that a new field in
the manifest is looked up there first.
"""
import re
import subprocess
import sys

import yaml


class Field:
    def __init__(self, kind, must=False):
        self.kind, self.must = kind, must


class OneOf:
    def __init__(self, *values):
        self.values = values


NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
PORT = re.compile(r"[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?")
MAP = {"*": Field(str)}


def must(kind):
    return Field(kind, True)


META = {"name": must(NAME), "labels": Field(MAP), "annotations": Field(MAP)}
POD_META = {"labels": Field(MAP), "annotations": Field(MAP)}
CONTAINER = {
    "name": must(NAME), "image": must(str), "command": Field([str]), "args": Field([str]),
    "ports": Field([{"name": Field(PORT), "containerPort": must(int)}]),
    "readinessProbe": Field({"tcpSocket": Field({"port": must((int, PORT))})}),
    "resources": Field({"requests": Field({"*": Field(QUANTITY)}), "limits": Field({"*": Field(QUANTITY)})}),
    "volumeMounts": Field([{"name": must(NAME), "mountPath": must(str), "readOnly": Field(bool)}]),
}
POD = {
    "containers": must([CONTAINER]), "terminationGracePeriodSeconds": Field(int),
    "volumes": Field([{"name": must(NAME), "persistentVolumeClaim": Field({"claimName": must(str), "readOnly": Field(bool)})}]),
}
TEMPLATE = {"metadata": Field(POD_META), "spec": must(POD)}
KINDS = {
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): {
        "replicas": Field(int),
        "leaderWorkerTemplate": must({
            "size": Field(int), "workerTemplate": must(TEMPLATE), "leaderTemplate": Field(TEMPLATE),
            "restartPolicy": Field(OneOf("None", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart"))}),
        "startupPolicy": Field(OneOf("LeaderCreated", "LeaderReady"))},
    ("v1", "Service"): {
        "selector": Field(MAP), "clusterIP": Field(str),
        "ports": must([{"name": Field(PORT), "port": must(int), "targetPort": Field((int, PORT))}])},
    ("networking.k8s.io/v1", "NetworkPolicy"): {
        "podSelector": must({"matchLabels": Field(MAP)}), "policyTypes": Field([OneOf("Ingress", "Egress")]),
        "ingress": Field([{"from": Field([{"podSelector": Field({"matchLabels": Field(MAP)})}]),
                           "ports": Field([{"port": Field((int, PORT))}])}])},
}
BAD = []


def check(value, kind, where):
    if isinstance(kind, tuple):
        before = len(BAD)
        for k in kind:
            del BAD[before:]
            check(value, k, where)
            if len(BAD) == before:
                return
    elif isinstance(kind, dict):
        if not isinstance(value, dict):
            BAD.append(f"{where}: not a map")
            return
        for key, v in value.items():
            field = kind.get(key, kind.get("*"))
            if field:
                check(v, field.kind, f"{where}.{key}")
            else:
                BAD.append(f"{where}.{key}: no such field")
        BAD.extend(f"{where}.{k}: missing" for k, f in kind.items() if f.must and k not in value)
    elif isinstance(kind, list):
        if not isinstance(value, list):
            BAD.append(f"{where}: not a list")
            return
        for i, v in enumerate(value):
            check(v, kind[0], f"{where}[{i}]")
    elif isinstance(kind, OneOf):
        if value not in kind.values:
            BAD.append(f"{where}: '{value}' is none of {kind.values}")
    elif isinstance(kind, re.Pattern):
        if not isinstance(value, str) or not kind.fullmatch(value):
            BAD.append(f"{where}: '{value}' does not match")
    elif not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        BAD.append(f"{where}: {value!r} is no {kind.__name__}")


def containers(doc):
    t = doc.get("spec", {}).get("leaderWorkerTemplate", {})
    for key in ("leaderTemplate", "workerTemplate"):
        yield from t.get(key, {}).get("spec", {}).get("containers", [])


def check_program(c):
    program = c["command"][0]
    table = subprocess.run([program, "--options"], stdout=subprocess.PIPE, check=True, text=True).stdout
    takes = {line.split("\t")[0]: bool(line.split("\t")[2]) for line in table.splitlines()}
    for arg in c.get("args", []):
        name, eq, value = arg.partition("=")
        if not name.startswith("--") or name[2:] not in takes or takes[name[2:]] != bool(eq):
            BAD.append(f"{program} does not take '{arg}'")
        for v in re.findall(r"\$\((.*?)\)", value):
            if v not in ("LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX"):
                BAD.append(f"'{arg}': nobody sets {v}")


def check_wiring(docs):
    """Names that stand for something are there."""
    services = {d["metadata"]["name"]: d["spec"] for d in docs if d["kind"] == "Service"}
    pods = [d["spec"]["leaderWorkerTemplate"]["workerTemplate"] for d in docs if d["kind"] == "LeaderWorkerSet"]
    for name, s in services.items():
        chosen = [p for p in pods if s["selector"].items() <= p["metadata"]["labels"].items()]
        if len(chosen) != 1:
            BAD.append(f"service {name} is of {len(chosen)} sets")
        for port in s["ports"]:
            if not any(port["targetPort"] == q["name"] for p in chosen for c in p["spec"]["containers"] for q in c["ports"]):
                BAD.append(f"service {name}: no port {port['targetPort']}")
    for p in pods:
        volumes = {v["name"] for v in p["spec"]["volumes"]}
        for c in p["spec"]["containers"]:
            BAD.extend(f"no volume {m['name']}" for m in c["volumeMounts"] if m["name"] not in volumes)
            for arg in c["args"]:
                m = re.fullmatch(r"--connect=tcp:([^:]*):([0-9]+)", arg)
                if m and (m[1] not in services or int(m[2]) not in [q["port"] for q in services[m[1]]["ports"]]):
                    BAD.append(f"'{arg}': no such service")


def main():
    with open(sys.argv[1]) as f:
        docs = list(yaml.safe_load_all(f))
    for i, d in enumerate(docs):
        kind = KINDS.get((d.get("apiVersion"), d.get("kind")))
        if kind is None:
            BAD.append(f"document {i}: unknown kind {d.get('apiVersion')} {d.get('kind')}")
            continue
        check(d, {"apiVersion": must(str), "kind": must(str), "metadata": must(META), "spec": must(kind)}, d["kind"])
        for c in containers(d):
            check_program(c)
    if not BAD:
        check_wiring(docs)
    for b in BAD:
        print(b)
    return int(bool(BAD) or len(docs) < 1)


if __name__ == "__main__":
    sys.exit(main())
