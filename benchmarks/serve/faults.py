"""Faults whose harm is a ratio of times: F2, F8, F10, F29, F30 of the service. That they do no other harm is tested.

    python benchmarks/serve/faults.py [--only F29,F30] [--repeats 5] [--seconds 8] [--out FILE]

One server (`schemes.py`, scheme D, a model that sleeps) is measured with and without the fault by turns, so that whatever else
the machine does hits both; given are medians over the repeats.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from generator import Client, closed_loop, open_loop, percentile, requests

from dynavit.bench.machine import describe_machine
from dynavit.common.files import write_json

HERE = Path(__file__).parent
MIX = (0.6, 0.25, 0.15)
LIMITS = {"F2": 1.5, "F8": 1.05, "F10": 2.0, "F29": 1.02, "F30": 1.02}
TRICKLING, STREAMS, SCRAPES = 500, 100, 50
LOAD = 0.8  # of what the server can do
EQUAL_CLIENTS = 20  # in place of the greedy one


class Server:
    def __init__(self, address, images, capacity=0.0):
        self.address, self.images, self.capacity = address, images, capacity
        self.host, port = address.removeprefix("http://").split(":")
        self.port = int(port)

    def client(self):
        return Client(self.address, self.images)

    async def latency(self, seconds, share, q, seed):
        """A percentile of the latency at a share of the capacity."""
        client, rate = self.client(), share * self.capacity
        done = await open_loop(client, requests(MIX, int(seconds * rate), seed), rate, seed)
        client.close()
        return percentile([request.latency for request in done if request.status == 200], q)

    async def rate(self, seconds, seed, at_once=48):
        """Images per second with so many requests under way."""
        client = self.client()
        start = time.monotonic()
        done = await closed_loop(client, requests(MIX, 100_000, seed), at_once, seconds)
        client.close()
        return sum(request.status == 200 for request in done) / (time.monotonic() - start)

    async def open(self, data, local="127.0.0.1"):
        reader, writer = await asyncio.open_connection(self.host, self.port, local_addr=(local, 0))
        writer.write(data)
        return reader, writer


async def repeatedly(work, every):
    """Do something again and again, until cancelled."""
    while True:
        start = time.monotonic()
        await work()
        await asyncio.sleep(max(0.0, every - (time.monotonic() - start)))


async def beside(disturbance, measurement):
    task = asyncio.ensure_future(disturbance)
    await asyncio.sleep(0.5)
    try:
        return await measurement
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def f2(server, seconds, seed):
    """p99 of others while 500 connections trickle / without."""

    head = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 100000\r\n\r\n"
    beginnings = (head, head[:12])  # a body, a path

    async def trickle():
        try:
            while True:
                for at, (reader, writer) in enumerate(slow):
                    if reader.at_eof() or writer.is_closing():
                        writer.close()
                        slow[at] = await server.open(beginnings[at % 2])
                    else:
                        writer.write(b"x")
                await asyncio.sleep(1)
        finally:
            for _, writer in slow:
                writer.close()

    without = await server.latency(seconds, LOAD / 2, 0.99, seed)
    slow = [await server.open(beginnings[at % 2]) for at in range(TRICKLING)]
    return await beside(trickle(), server.latency(seconds, LOAD / 2, 0.99, seed)) / without


async def f8(server, seconds, seed):
    """Time per image after a storm of clients that gave up / before it."""
    before = await server.rate(seconds, seed)
    client, work = server.client(), requests(MIX, int(2 * server.capacity), seed)

    async def impatient(request, patience):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(client.send(request), patience)

    await asyncio.gather(*[impatient(request, 10 if at % 5 == 0 else 0.05) for at, request in enumerate(work)])
    client.close()
    return before / await server.rate(seconds, seed)


async def f10(server, seconds, seed):
    """p95 of a small client while one greedy client makes the load / while twenty do."""

    async def small(addresses):
        clients = []
        for address in addresses:
            client = server.client()
            for _ in range(64):
                client.free.append(await server.open(b"", address))
            clients.append(client)
        modest = server.client()
        modest.free.append(await server.open(b"", "127.0.0.99"))
        count = int(seconds * LOAD * server.capacity / len(clients))
        loads = [
            open_loop(client, requests(MIX, count, seed + at), LOAD * server.capacity / len(clients), seed + at)
            for at, client in enumerate(clients)
        ]
        own = requests(MIX, int(2 * seconds), seed)
        await asyncio.gather(open_loop(modest, own, 2.0, seed), *loads)
        for client in (*clients, modest):
            client.close()
        return percentile([request.latency for request in own], 0.95)

    alike = await small([f"127.0.0.{10 + at}" for at in range(EQUAL_CLIENTS)])
    return await small(["127.0.0.2"]) / alike


async def f29(server, seconds, seed):
    """Time per image while metrics are read 50 times a second / without."""

    async def scrape():
        reader, writer = await server.open(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        await reader.read()
        writer.close()

    without = await server.rate(seconds, seed)
    return without / await beside(repeatedly(scrape, 1 / SCRAPES), server.rate(seconds, seed))


async def f30(server, seconds, seed):
    """Time per image while 100 clients want event streams / without."""

    async def watch():
        ask = b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n"
        streams = [await server.open(ask) for _ in range(STREAMS)]
        try:
            await asyncio.gather(*[reader.read(-1) for reader, _ in streams])
            await asyncio.sleep(3600)
        finally:
            for _, writer in streams:
                writer.close()

    without = await server.rate(seconds, seed)
    return without / await beside(watch(), server.rate(seconds, seed))


FAULTS = {"F2": f2, "F8": f8, "F10": f10, "F29": f29, "F30": f30}


async def measure(server, names, seconds, repeats):
    server.capacity = await server.rate(seconds, 0)
    found = {name: [] for name in names}
    for repeat in range(repeats):
        for name in names:
            found[name].append(await FAULTS[name](server, seconds, repeat))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default=",".join(FAULTS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names = options.only.split(",")
    words = [sys.executable, str(HERE / "schemes.py"), "--model", "cpu", "--scheme", "D"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        address = json.loads(process.stdout.readline())["address"]
        server = Server(address, [one_image()])
        found = asyncio.run(measure(server, names, options.seconds, options.repeats))
    finally:
        process.terminate()
        process.communicate()
    result = {"machine": describe_machine(), "images_per_second": server.capacity, "faults": {}}
    for name, ratios in found.items():
        middle = statistics.median(ratios)
        result["faults"][name] = {"ratio": middle, "all": ratios, "allowed": LIMITS[name]}
        verdict = "kept" if middle <= LIMITS[name] else "MISSED"
        spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
        print(f"{name}: {FAULTS[name].__doc__} {middle:.3f} (at most {LIMITS[name]}, {verdict}), {spread}")
    if options.out:
        write_json(options.out, result)


def one_image():
    import io

    from PIL import Image

    buffer = io.BytesIO()
    Image.effect_noise((8, 8), 60).save(buffer, "PNG")
    return buffer.getvalue()


if __name__ == "__main__":
    main()
