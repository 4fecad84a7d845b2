"""A10: many minutes of load with faults in it, and the books afterwards. `load.py --soak SECONDS` runs it.

At 0.8 of what the server can do, all at the same time:

    F7   three clients in a hundred hang up, at any moment within 0.4 s
    F13  every twenty seconds a poisonous image, whose step raises; its company has to be answered
    F23  every two seconds another budget for requests that name none
    one image in a hundred is none

Every request has an id of its own that the answer has to bear, and its own deepest exit, which the answer has to have reached:
so an answer that is lost, given twice, or given to somebody else is seen.
"""

import asyncio
import json
import random
import time
from collections import Counter
from urllib.request import Request as Ask
from urllib.request import urlopen

from generator import Client, Request, deck, percentile, undisturbed

TOKEN = "benchmark-admin-token"
GONE, NO_IMAGE, NO_BUDGET = 0.03, 0.01, 0.05  # shares of the requests
POISON_EVERY, BUDGET_EVERY, MEMORY_EVERY = 20.0, 2.0, 1.0  # seconds
HANGS = 60.0  # seconds after the last request; total_time is 30
ENDS = ("images", "refused", "cancelled", "expired", "failed", "decode_errors")


def ask(address, path, body=None, method="GET"):
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    with urlopen(Ask(address + path, body, headers, method=method), timeout=20) as answer:
        return json.load(answer)


def soak(served, mix, rate, seconds, images, white, seed=0):
    """Counts of what went right and wrong. `images` are encoded, `white` is the poisonous one."""
    return asyncio.run(_soak(served, mix, rate, seconds, images, white, random.Random(seed)))


async def _soak(served, mix, rate, seconds, images, white, chance):
    bodies = [*images, white, b"this is no image"]
    client, caps, work, tasks = Client(served.address, bodies), deck(mix, chance), [], []
    memory, changes, before = [], [], ask(served.address, "/v1/stats")["totals"]

    def new(kind, cap, body):
        query = f"?level=1&max_exit={cap}" if cap else ""
        work.append((kind, Request(f"/v1/predict{query}", cap, body, f"{kind}-{len(work)}")))
        return work[-1][1]

    with undisturbed():
        begun = due = time.monotonic()
        faults = [asyncio.ensure_future(each) for each in (_budgets(served, chance, changes), _watch(served, memory, begun))]
        poison_at = begun + min(1.0, seconds / 2)
        while due < begun + seconds:
            due += chance.expovariate(rate)
            await asyncio.sleep(max(due - time.monotonic(), 0))
            body, draw = chance.randrange(len(images)), chance.random()
            if due >= poison_at:
                poison_at += POISON_EVERY
                request = new("poison", next(caps), len(images))
            elif draw < NO_IMAGE:
                request = new("no_image", next(caps), len(images) + 1)
            elif draw < NO_IMAGE + NO_BUDGET:
                request = new("no_budget", 0, body)
            elif draw < NO_IMAGE + NO_BUDGET + GONE:
                request = new("gone", next(caps), body)
            else:
                request = new("plain", next(caps), body)
            request.meant = due
            gone_after = chance.uniform(0, 0.4) if work[-1][0] == "gone" else None
            tasks.append(asyncio.ensure_future(_send(client, request, gone_after)))
        _, hung = await asyncio.wait(tasks, timeout=HANGS)
        for task in (*hung, *faults):
            task.cancel()
        for end in await asyncio.gather(*faults, return_exceptions=True):
            if not isinstance(end, asyncio.CancelledError):
                raise end
    client.close()
    while (stats := ask(served.address, "/v1/stats"))["queue"] + stats["running"] and time.monotonic() < due + HANGS:
        await asyncio.sleep(0.1)
    return _books(work, len(hung), len(changes), memory, before, stats)


async def _send(client, request, gone_after):
    if gone_after is None:
        return await client.send(request)
    alone = Client(f"http://{client.host}:{client.port}", client.bodies, client.kind)
    try:
        await asyncio.wait_for(alone.send(request), gone_after)  # the cancelled call leaves its connection behind
    except TimeoutError:
        request.status = -1
    finally:
        alone.close()


async def _budgets(served, chance, changes):
    while True:
        deepest = chance.randint(1, 3)
        await asyncio.to_thread(ask, served.address, "/v1/budget", json.dumps({"max_exit": deepest}).encode(), "PUT")
        changes.append(deepest)
        await asyncio.sleep(BUDGET_EVERY)


async def _watch(served, memory, begun):
    while True:
        memory.append((time.monotonic() - begun, served.memory()))
        await asyncio.sleep(MEMORY_EVERY)


def wrong(kind, request):
    """What is the matter with an answer; None if it is right."""
    expected = {"poison": 500, "no_image": (415, 422)}.get(kind, 200)
    if kind == "gone" and request.status == -1:
        return None
    if request.status == 0:
        return "lost"
    if request.answer.get("request_id") != request.id:
        return "of another request"
    if request.status == 503:
        return None if request.answer["code"] == "queue_full" else "refused for another reason"
    if request.status not in (expected if isinstance(expected, tuple) else (expected,)):
        return f"status {request.status} for {kind}"
    if request.status == 200:
        deepest = request.cap or request.answer["budget"]["applied"]["max_exit"]
        if request.answer["results"][0]["exit"] != deepest:
            return "another exit than asked for"
    return None


def _books(work, hung, changed, memory, before, stats):
    faults = Counter(filter(None, (wrong(kind, request) for kind, request in work)))
    answered = [request.answer["request_id"] for _, request in work if request.status == 200]
    ends = {name: stats["totals"].get(f"{name}_total", 0) - before.get(f"{name}_total", 0) for name in ENDS}
    received = stats["totals"]["images_received_total"] - before.get("images_received_total", 0)
    settled = memory[len(memory) // 3 :] or memory
    return {
        "requests": Counter(kind for kind, _ in work),
        "statuses": Counter(str(request.status) for _, request in work),
        "lost": faults.pop("lost", 0),
        "doubled": len(answered) - len(set(answered)) + faults.pop("of another request", 0),
        "hung": hung,
        "wrong": faults,
        "left_in_queue": stats["queue"] + stats["running"],
        "unaccounted": received - sum(ends.values()),
        "ends": ends,
        "budgets": changed,
        "p99_ms": 1e3 * percentile([request.latency for kind, request in work if request.status == 200], 0.99),
        "lag_p99_ms": 1e3 * percentile([request.lag for _, request in work if request.sent], 0.99),
        "memory": memory,
        "growth": settled[-1][1] / settled[0][1] - 1,
    }
