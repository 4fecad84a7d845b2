"""A client that does not wait for answers before it sends more (open loop), and one that does (closed loop). asyncio alone.

Latency counts from the moment at which a request was *meant* to be sent, so that a slow server cannot hide its queue by slowing
the client down. The client's own lag is reported; a run in which its 99th percentile is above 5 ms says nothing.
"""

import asyncio
import gc
import json
import math
import random
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from urllib.parse import urlsplit


@dataclass(slots=True)
class Request:
    """One image: what it may cost, and how it went. Times in seconds."""

    path: str
    cap: int
    body: int = 0  # index of the image
    id: str = ""  # that the server has to give back
    meant: float = 0.0
    sent: float = 0.0
    done: float = 0.0
    status: int = 0
    answer: dict = field(default_factory=dict)

    @property
    def latency(self):
        return self.done - self.meant

    @property
    def lag(self):
        return self.sent - self.meant


class Client:
    """Keep-alive connections to one server; as many as are needed at the same time."""

    def __init__(self, address, bodies, kind="image/png"):
        parts = urlsplit(address)
        self.host, self.port, self.bodies, self.kind = parts.hostname, parts.port, bodies, kind
        self.free = []

    async def send(self, request):
        """Fill in how it went; a broken connection is status 0."""
        try:
            reader, writer = self.free.pop() if self.free else await asyncio.open_connection(self.host, self.port)
            body = self.bodies[request.body]
            head = f"POST {request.path} HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: {self.kind}\r\n"
            head += f"X-Request-ID: {request.id}\r\n" if request.id else ""
            head += f"Content-Length: {len(body)}\r\n\r\n"
            request.sent = time.monotonic()
            writer.write(head.encode() + body)
            status, content, stays = await _response(reader)
            request.done = time.monotonic()
            request.status, request.answer = status, json.loads(content)
            if stays:
                self.free.append((reader, writer))
            else:
                writer.close()
        except (OSError, asyncio.IncompleteReadError, ValueError):
            request.done = time.monotonic()

    def close(self):
        for _, writer in self.free:
            writer.close()
        self.free = []


async def _response(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    lines = head.split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
    content = await reader.readexactly(int(fields.get("content-length", 0)))
    return int(lines[0].split()[1]), content, fields.get("connection") != "close"


def deck(mix, chance):
    """Deepest exits without end: shuffled, and each mix is exact within the shortest run of images that can hold it.

    Drawn one by one, the work of 42 images at 10/20/70 is off by 6 % in the mean, which is more than what is measured.
    """
    shares = [Fraction(share).limit_denominator(100) for share in (*mix, 1 - sum(mix))]
    length = math.lcm(*(share.denominator for share in shares))
    cards = [exit for exit, share in enumerate(shares, start=1) for _ in range(int(share * length))]
    while True:
        chance.shuffle(cards)
        yield from cards


def requests(mix, count, seed, extra="", images=1):
    """Requests with a seeded deepest exit each: the exit mix is exact, whatever the model thinks."""
    chance = random.Random(seed)
    caps = [cap for cap, _ in zip(deck(mix, chance), range(count), strict=False)]
    return [Request(f"/v1/predict?level=1&max_exit={cap}{extra}", cap, chance.randrange(images)) for cap in caps]


@contextmanager
def undisturbed():
    """Without the garbage collector, which stops this process for 0.1 s when it looks at everything."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def steady_rate(times, start, end):
    """Answers per second between two times: the slope of their number over time.

    Answers come in batches. To count those within the time is off by up to one batch at either end, the slope is not; NaN
    where they fill less than a quarter of the time, which may be one batch.

    >>> steady_rate([batch * 0.5 for batch in range(6) for _ in range(8)], 0.3, 2.2)
    16.0
    """
    inside = sorted(time for time in times if start <= time <= end)
    if not inside or inside[-1] - inside[0] < (end - start) / 4:
        return math.nan
    middle = math.fsum(inside) / len(inside)
    spread = math.fsum((time - middle) ** 2 for time in inside)
    return math.fsum((time - middle) * at for at, time in enumerate(inside)) / spread


async def open_loop(client, work, rate, seed=0):
    """Send the requests at Poisson times of this rate per second; all of them, when the last has been answered."""
    chance, tasks, due = random.Random(seed), [], time.monotonic() + 0.05
    for request in work:
        due += chance.expovariate(rate)
        while (ahead := due - time.monotonic()) > 0:
            await asyncio.sleep(ahead)
        request.meant = due
        tasks.append(asyncio.ensure_future(client.send(request)))
    await asyncio.gather(*tasks)
    return work


async def closed_loop(client, work, at_once, seconds):
    """Keep so many requests under way for so long; those that were begun."""
    end, waiting = time.monotonic() + seconds, iter(work)
    begun = []

    async def one():
        for request in waiting:
            if time.monotonic() >= end:
                return
            request.meant = time.monotonic()
            begun.append(request)
            await client.send(request)
            if request.status == 0:
                await asyncio.sleep(0.01)

    await asyncio.gather(*[one() for _ in range(at_once)])
    return begun


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else float("nan")
