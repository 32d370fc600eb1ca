"""Two processes with other hash seeds and other list orders must agree on every home."""

import json
import os
import random
import subprocess
import sys
from collections import Counter

SCRIPT = """
import json, sys
from extproc import pool, prompt, router

names = json.loads(sys.argv[1])
endpoints = [pool.Endpoint(pool.EndpointId(name), name + ":80") for name in names]
chooser = router.Router(pool.make("p", endpoints), router.Settings(policy=sys.argv[2]))
found = []
for number in range(150):
    fields = {"model": "m", "tools": [{"b": number % 3, "a": 1}], "cache_salt": str(number % 2), "messages": [
        {"role": "system", "content": "be brief " * 200},
        {"role": "user", "content": f"question {number % 60} " * (number % 60)},
    ]}
    body = json.dumps(fields).encode()
    read = prompt.read("/v1/chat/completions", body, prompt.Settings(), whole=True)
    choice = chooser.choose(read, number * 0.01, 0.5).choice
    order = list(chooser.ring.order(choice.key))
    found.append([choice.endpoint.id, choice.reason, choice.anchor_block, choice.key, order])
print(json.dumps([hash("kvring"), found]))
"""

NAMES = [f"vllm-{i}" for i in range(8)]


def run(hash_seed: str, names: list[str], policy: str) -> tuple[int, list[list[object]]]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(names), policy],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    seed, found = json.loads(done.stdout)
    return seed, found


def test_processes_agree_whatever_their_hash_seed_and_list_order() -> None:
    shuffled = [*NAMES, "vllm-3"]
    random.Random(5).shuffle(shuffled)
    for policy in ("ring", "cost"):
        one_seed, one = run("1", NAMES, policy)
        other_seed, other = run("2", shuffled, policy)
        assert one_seed != other_seed  # the seeds were in effect
        assert one == other
        assert len(Counter(str(row[0]) for row in one)) > 4
