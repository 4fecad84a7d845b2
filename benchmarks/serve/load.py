"""Load on the whole service over HTTP: what early exit and regrouping gain, and the acceptance table A1 to A10 and A13.

    python benchmarks/serve/load.py --out FILE          everything; hours with the defaults, and the machine for itself
    python benchmarks/serve/load.py --seconds 3 --repeats 2 --overload-seconds 40 --soak 60 --out FILE         20 minutes
    python benchmarks/serve/load.py ... --out FILE --resume         goes on where Ctrl-C stopped it, or adds what is not there
    python benchmarks/serve/load.py --only A2,A5 --models accelerator --mixes 60/25/15 --seconds 4 --repeats 1     a short look
    python benchmarks/serve/load.py --table FILE        a stored result as a table for docs/serve_scheduler.md

Four ways to schedule (`schemes.py`) stand behind the same service, each in a process of its own, and take turns. LitServe
(`lit_scheme.py`) and Ray Serve (`ray_scheme.py`) are a fifth and a sixth where --litserve and --ray name a Python that has
them. The exit mix is exact: nobody is sure, and each request has a seeded `max_exit`. Images per second are those of a closed
loop with many requests under way; latencies are those of an open loop with Poisson arrivals, from the intended time of sending
(`generator.py`). Beside them stands what the simulator predicts for the same requests from the costs that the server measured,
those at its start and those under this load (A5). Ratios have 95 % bootstrap intervals over the repeats. A model that sleeps
instead of computing stands in for an accelerator, and is named so. A10 is `soak.py`, A13 `page_speed.py`.
"""

import argparse
import asyncio
import base64
import io
import json
import math
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import numpy as np
from generator import Client, Request, closed_loop, open_loop, percentile, requests, steady_rate, undisturbed
from PIL import Image
from simulate import MIXES, Scheduler, Shrinking, closed, make
from soak import TOKEN, soak

from dynavit.bench.machine import describe_machine
from dynavit.common.files import write_json

HERE = Path(__file__).parent
AT_ONCE = {"accelerator": 192, "cpu": 48, "t2t12": 24}  # three batches and more
NAMES = {"B": "one at a time", "E": "LitServe", "F": "Ray Serve"}
ELSEWHERE = {"E": "lit_scheme.py", "F": "ray_scheme.py"}
LONGEST = 30  # seconds that a rate may take where --seconds are too few
LARGEST_LAG = 0.005  # seconds; p99 of the client's own
MUST = {"A1": (4.0, 2.3, 1.5, 1.1), "A2": (1.35, 1.25, 1.1, 1.0), "A3": 1.15, "A4": 0.5, "A5": 0.15}
GOAL = {"A1": (5.3, 2.8, 1.8, 1.2), "A2": (1.55, 1.4, 1.18, 1.04), "A3": 1.05, "A4": 0.3, "A5": 0.07}


class Served:
    """A server process. `python` is another one than this, for schemes whose packages are installed elsewhere."""

    def __init__(self, model, scheme, *words, python=sys.executable):
        environment = {"DYNAVIT_ADMIN_TOKEN": TOKEN, "OMP_NUM_THREADS": "1", **os.environ}
        script = [ELSEWHERE[scheme]] if scheme in ELSEWHERE else ["schemes.py", "--scheme", scheme]
        command = [python, str(HERE / script[0]), *script[1:], "--model", str(model), *words]
        self.scheme = scheme
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True, start_new_session=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server of scheme {scheme} did not start: {' '.join(command)}")
        facts = json.loads(line)
        self.address, self.pid, self.most, self.lines = facts["address"], facts["pid"], facts["most"], facts["lines_ms"]
        for _ in range(600 * (scheme == "E")):  # it says where before it listens
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", int(self.address.rpartition(":")[2]))) == 0:
                    break
            time.sleep(0.1)

    def steps(self):
        """(steps, images, seconds) of each exit so far."""
        with urlopen(f"{self.address}/metrics") as answer:
            text = answer.read().decode()

        def of_exit(name, exit):
            found = re.search(rf'^dynavit_{name}{{exit="{exit}"}} (\S+)$', text, re.MULTILINE)
            return float(found[1]) if found else 0.0

        names = ("stage_seconds_count", "batch_size_sum", "stage_seconds_sum")
        return [[of_exit(name, exit) for name in names] for exit in range(1, len(self.lines) + 1)]

    def lines_since(self, before):
        """The costs in ms that it measured at its start, each exit's times what its steps really took since `before`."""
        lines = []
        for (fixed, each), old, new in zip(self.lines, before, self.steps(), strict=True):
            steps, images, seconds = (late - early for late, early in zip(new, old, strict=True))
            times = 1e3 * seconds / (fixed * steps + each * images) if steps else 1.0
            lines.append((times * fixed, times * each))
        return lines

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(40)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # the workers of others too

    def memory(self):
        """Resident bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu(self):
        """Processor seconds so far."""
        words = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def bodies(model):
    """A few encoded images, of the size that the model is usually given."""
    chance = np.random.default_rng(0)
    if model == "t2t12":
        pixels = [chance.integers(0, 256, (256, 320, 3), np.uint8) for _ in range(4)]
        return [_encoded(Image.fromarray(each).resize((320, 256)), "JPEG") for each in pixels], "image/jpeg"
    return [_encoded(Image.fromarray(chance.integers(0, 256, (8, 8), np.uint8)), "PNG") for _ in range(4)], "image/png"


def _encoded(image, kind):
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def client_of(served, model):
    encoded, kind = bodies(model)
    if served.scheme not in ELSEWHERE:
        return Client(served.address, encoded, kind)
    text = base64.b64encode(encoded[0]).decode()
    return Client(
        served.address, [json.dumps({"b64": text, "max_exit": cap}).encode() for cap in (1, 2, 3)], "application/json"
    )


def work_for(served, mix, count, seed, extra=""):
    work = requests(MIXES[mix], count, seed, extra, images=4)
    for request in work if served.scheme in ELSEWHERE else ():
        request.path, request.body = "/predict", request.cap - 1
    return work


def saturated(served, model, mix, seconds, seed):
    """Images per second with many requests under way, without the first fifth of the time; and as the simulator foretells."""
    at_once = AT_ONCE.get(model, 64)

    async def run():
        client = client_of(served, model)
        with undisturbed():
            begun = await closed_loop(client, work, at_once, seconds)
        client.close()
        return begun

    before, work = served.cpu(), work_for(served, mix, 10**5, seed)
    steps = None if served.scheme in ELSEWHERE else served.steps()
    begun = asyncio.run(run())
    answered = [request for request in begun if request.status == 200]
    start, end = begun[0].meant + 0.2 * seconds, begun[0].meant + seconds
    inside = [request for request in answered if start <= request.done <= end]
    rate = steady_rate([request.done for request in inside], start, end)
    if math.isnan(rate) and seconds < LONGEST:  # hardly more than one batch
        return saturated(served, model, mix, 2 * seconds, seed)
    if math.isnan(rate):
        raise RuntimeError(
            f"scheme {served.scheme} answered at most one batch within {seconds:g} s; a quieter machine is needed"
        )
    batches = [[] for _ in range(3)]
    for request in inside:
        for at, size in enumerate(request.answer["results"][0]["cost"]["batch"]):
            batches[at].append(size)
    found = {
        "rate": rate,
        "failed": len(begun) - len(answered),
        "batch": [statistics.mean(sizes) if sizes else None for sizes in batches],
        "cpu_per_image": (served.cpu() - before) / max(len(answered), 1),
    }
    if served.scheme in ELSEWHERE:
        return found
    caps, now = [request.cap for request in work], served.lines_since(steps)
    lines = {"lines_ms": now, "predicted": now, "predicted_from_start": served.lines}
    for name in ("predicted", "predicted_from_start"):
        lines[name] = predicted(lines[name], served.most, served.scheme, caps, at_once, seconds)
    return found | lines


def offered(served, model, mix, rate, seconds, seed, extra="", memory=None):
    """The requests of an open loop. Bytes in use are noted in `memory` every second."""

    async def watch():
        while memory is not None:
            memory.append(served.memory())
            await asyncio.sleep(1)

    async def run():
        client = client_of(served, model)
        work = work_for(served, mix, max(int(rate * seconds), 20), seed, extra)
        with undisturbed():
            watching = asyncio.ensure_future(watch())
            await open_loop(client, work, rate, seed)
            watching.cancel()
        client.close()
        return work

    return asyncio.run(run())


def latencies(work, cap=None):
    """Of answered requests without the first tenth, in ms; the client's lag beside them."""
    kept = work[len(work) // 10 :]
    good = [request for request in kept if request.status == 200 and cap in (None, request.cap)]
    times = [1e3 * request.latency for request in good]
    found = {f"p{share}": percentile(times, share / 100) for share in (50, 95, 99)}
    lag = percentile([request.lag for request in kept], 0.99)
    return {**found, "answered": len(good), "lag_p99_ms": 1e3 * lag, "void": lag > LARGEST_LAG}


def predicted(lines, most, scheme, caps, at_once, seconds):
    """Images per second of the same requests by the simulator, with these costs, told in the same way."""
    kind = Scheduler if scheme == "D" else Shrinking
    exits = [len(lines)] * len(caps) if scheme == "A" else caps
    times = closed(make(kind, lines, most), exits, at_once, 1e3 * seconds)
    return 1e3 * steady_rate(times, 200 * seconds, 1e3 * seconds)


def interval(ratios, seed=0, draws=2000):
    """The median, and the 95 % bootstrap interval of it."""
    chance = random.Random(seed)
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(draws))
    return {
        "ratio": statistics.median(ratios),
        "interval": [medians[int(0.025 * draws)], medians[int(0.975 * draws)]],
        "n": len(ratios),
    }


class Bench:
    """Options, and what was found so far."""

    def __init__(self, options):
        self.options, self.rows, self.found, self.done, self.commands = options, [], {}, [], []
        self.words, self.part = ("--scale", str(options.scale)), ""
        if options.resume and options.out and Path(options.out).is_file():
            stored = json.loads(Path(options.out).read_text())
            self.done, self.found, self.commands = stored["done"], stored["details"], stored["commands"]
            self.rows = [row for row in stored["table"] if row["part"] in self.done]

    def run(self, part, work):
        """A part of the whole, unless it was done before; kept at once."""
        if part in self.done:
            print(f"{part}: done before")
            return
        self.part = part
        work()
        self.done.append(part)
        store(self)

    def row(self, name, what, value, must, goal, good=None, best=None, mix=None):
        """A line of the table. `good`, `best`: whether must and goal are reached."""
        self.rows.append(
            {
                "part": self.part,
                "number": name,
                "measure": what,
                "mix": mix,
                "value": value,
                "must": must,
                "goal": goal,
                "reached": good,
                "goal_reached": best,
            }
        )
        what = what if mix is None else f"{what}, {mix}"
        mark = {True: "ok", False: "MISSED", None: "-"}
        shown = (
            f"{value['ratio']:.3g} [{value['interval'][0]:.3g}, {value['interval'][1]:.3g}]"
            if isinstance(value, dict)
            else value
        )
        shown = f"{shown:.3g}" if isinstance(shown, float) else shown
        print(f"{name}  {what:58} {shown!s:24} must {must!s:8} {mark[good]:7} goal {goal!s:8} {mark[best]}", flush=True)

    def wants(self, *names):
        return self.options.only is None or any(name in self.options.only for name in names)

    # ---- Throughput and latency of the schemes

    def start(self, stack, model, scheme):
        python = {"E": self.options.litserve, "F": self.options.ray}.get(scheme, sys.executable)
        return stack.enter_context(Served(model, scheme, *self.words, python=python))

    def compare(self, model):
        """Rates of all schemes at all mixes in turn; then latencies at shares of C's rate. Rows A1 to A6 follow from it."""
        options, rates = self.options, {}
        schemes = [scheme for scheme in options.schemes if scheme != "A" or model != "accelerator"]
        schemes += ["E"] * (options.litserve is not None) + ["F"] * (options.ray is not None)
        with ExitStack() as stack:
            servers = {}
            for scheme in schemes:
                try:
                    servers[scheme] = self.start(stack, model, scheme)
                except RuntimeError as error:
                    if scheme not in ELSEWHERE:
                        raise
                    print(f"left out: {error}", file=sys.stderr)
            schemes = list(servers)
            for repeat in range(options.repeats):
                for mix in options.mixes:
                    for scheme in _turned(schemes, repeat):
                        found = saturated(servers[scheme], model, mix, options.seconds, repeat)
                        rates.setdefault((mix, scheme), []).append(found)
            self.found[model] = {
                "lines_at_start_ms": servers["D"].lines,
                "rates": {f"{mix} {scheme}": each for (mix, scheme), each in rates.items()},
                "latency": {},
            }
            self.ratios(model, rates)
            if "C" in servers and (self.wants("loads") or (model != "t2t12" and self.wants("A3", "A4"))):
                self.delays(model, servers, rates)
            if self.wants("A6") and model != "t2t12":
                self.overload(model, servers["D"], rates)

    def ratios(self, model, rates):
        for at, mix in enumerate(MIXES):
            if mix not in self.options.mixes:
                continue
            each = {scheme: [found["rate"] for found in rates[mix, scheme]] for (its, scheme) in rates if its == mix}
            for name, over, wanted in (("A1", "A", model != "accelerator"), ("A2", "C", model == "accelerator")):
                if wanted and over in each and self.wants(name):
                    value = interval([ours / theirs for ours, theirs in zip(each["D"], each[over], strict=True)])
                    must, goal = MUST[name][at], GOAL[name][at]
                    good, best = value["ratio"] >= must, value["ratio"] >= goal
                    self.row(name, f"images/s, D / {over}, {model}", value, f">= {must}", f">= {goal}", good, best, mix)
            for scheme in each.keys() & NAMES.keys():
                value = interval([ours / theirs for ours, theirs in zip(each["D"], each[scheme], strict=True)])
                self.row(scheme, f"images/s, D / {NAMES[scheme]}, {model}", value, "-", "-", mix=mix)
            for scheme in ("A", "C", "D"):
                if scheme in each and self.wants("A5"):
                    off = statistics.median(found["rate"] / found["predicted"] - 1 for found in rates[mix, scheme])
                    what = f"images/s, measured / simulated - 1, {model}, {scheme}"
                    self.row("A5", what, off, "±0.15", "±0.07", abs(off) <= MUST["A5"], abs(off) <= GOAL["A5"], mix)

    def delays(self, model, servers, rates):
        options, kept = self.options, self.found[model]["latency"]
        for mix in options.mixes:
            base = statistics.median(found["rate"] for found in rates[mix, "C"])
            for load in options.loads:
                runs = {"C": [], "D": []}
                for repeat in range(options.repeats):
                    for scheme in _turned("CD", repeat):
                        work = offered(servers[scheme], model, mix, load * base, options.seconds, 100 + repeat)
                        runs[scheme].append(latencies(work))
                kept[f"{mix} at {load} of C"] = runs
                if load == 0.8 and self.wants("A3"):
                    value = interval([d["p99"] / c["p99"] for d, c in zip(runs["D"], runs["C"], strict=True)])
                    good, best = value["ratio"] <= MUST["A3"], value["ratio"] <= GOAL["A3"]
                    if any(run["void"] for each in runs.values() for run in each):
                        value["void"] = "the client lagged"
                        good = best = None
                    self.row("A3", f"p99, D / C at 0.8 load, {model}", value, "<= 1.15", "<= 1.05", good, best, mix)
            if "A" in servers and self.wants("A4"):
                slow = statistics.median(found["rate"] for found in rates[mix, "A"])
                pairs = []
                for repeat in range(options.repeats):
                    first = {
                        scheme: latencies(
                            offered(servers[scheme], model, mix, 0.8 * slow, options.seconds, 200 + repeat), cap=1
                        )
                        for scheme in _turned("AD", repeat)
                    }
                    pairs.append(first["D"]["p50"] / first["A"]["p50"])
                value = interval(pairs)
                good, best = value["ratio"] <= MUST["A4"], value["ratio"] <= GOAL["A4"]
                what = f"p50 of exit-1 images, D / A at 0.8 of A, {model}"
                self.row("A4", what, value, "<= 0.5", "<= 0.3", good, best, mix)

    def overload(self, model, served, rates):
        """Twice as much as it can: what is still answered, how late, how fast the rest is refused, and whether memory grows."""
        options, mix = self.options, "60/25/15" if "60/25/15" in self.options.mixes else self.options.mixes[0]
        rate = statistics.median(found["rate"] for found in rates[mix, "D"])
        offered(served, model, mix, 2 * rate, min(options.seconds, 5), 1)  # everything has been used once
        memory = []
        work = offered(served, model, mix, 2 * rate, options.overload_seconds, 300, memory=memory)
        full = work[len(work) // 10 :]  # the queue is full by then
        growth = memory[-1] / memory[len(memory) // 3] - 1
        good, refused = ([request for request in full if request.status == status] for status in (200, 503))
        answers = [request.done for request in work if request.status == 200]
        goodput = steady_rate(answers, full[0].meant, work[-1].meant) / rate
        late = percentile([request.latency for request in good], 0.99) / (256 / rate)
        told = 1e3 * percentile([request.done - request.sent for request in refused], 0.99)
        statuses = Counter(str(request.status) for request in work)
        others = len(full) - len(good) - len(refused)
        times = latencies(work)
        void = "; void, the client lagged" if times["void"] else ""
        self.found[f"overload {model}"] = {
            "mix": mix,
            "statuses": statuses,
            "goodput": goodput * rate,
            "memory": memory,
            **times,
        }
        self.row(
            "A6",
            f"overload 2.0, goodput / saturated, {model}",
            goodput,
            ">= 0.9",
            ">= 0.97",
            goodput >= 0.9,
            goodput >= 0.97,
            mix,
        )
        what, good, best = f"p99 of accepted / (max_queue / capacity), {model}{void}", late <= 1.2, late <= 1.05
        self.row("A6", what, late, "<= 1.2", "<= 1.05", None if void else good, None if void else best)
        what = f"ms to a refusal, p99 ({len(refused)} refused, {others} lost), {model}{void}"
        unknown, good, best = void or not refused, told <= 100, told <= 30
        self.row("A6", what, told, "<= 100", "<= 30", None if unknown else good, None if unknown else best)
        what = f"growth of memory in the last {2 / 3 * options.overload_seconds:.0f} s, {model}"
        self.row("A6", what, growth, "<= 0.1", "<= 0.03", growth <= 0.1, growth <= 0.03)

    # ---- One client; answers; deadlines

    def overhead(self, run):
        """A7: one client, one request at a time, on the digits model: what is left beside decoding and computing."""
        with Served(run, "D") as served:
            data = bodies("digits")[0]

            async def loop():
                client = Client(served.address, data)
                work = [Request("/v1/predict", 0, at % 4) for at in range(400)]
                for request in work:
                    request.meant = time.monotonic()
                    await client.send(request)
                client.close()
                return work[50:]

            work = asyncio.run(loop())
        start = time.perf_counter()
        for body in data * 25:
            Image.open(io.BytesIO(body)).convert("RGB")
        decode = (time.perf_counter() - start) / 100
        rest = [1e3 * (request.latency - decode) - request.answer["results"][0]["cost"]["compute_ms"] for request in work]
        value = percentile(rest, 0.5)
        self.found["overhead"] = {
            "p50_ms": value,
            "latency_p50_ms": 1e3 * percentile([r.latency for r in work], 0.5),
            "decode_ms": 1e3 * decode,
        }
        self.row("A7", "ms beyond decoding and model, 1 client, p50", value, "<= 5", "<= 2.5", value <= 5, value <= 2.5)

    def parity(self, run):
        """A8: all digits under concurrent load, beside `dynavit predict`."""
        from dynavit.data.config import DataConfig
        from dynavit.data.digits import open_digits
        from dynavit.runs.calibrate import read_policy
        from dynavit.runs.predict import predict_run

        data = open_digits(None, DataConfig())
        pixels = np.concatenate([split.images.numpy()[:, 0] for split in data.splits.values()])
        policy = read_policy(Path(run))
        with tempfile.TemporaryDirectory() as directory, Served(run, "D") as served:
            files = [Path(directory) / f"{at:04}.png" for at in range(len(pixels))]
            for file, each in zip(files, pixels, strict=True):
                Image.fromarray(each).save(file)

            async def loop():
                client = Client(served.address, [file.read_bytes() for file in files])
                work = [Request("/v1/predict", 0, at) for at in range(len(files))]
                random.Random(0).shuffle(work)
                await closed_loop(client, work, 48, 600)
                client.close()
                return {request.body: request.answer["results"][0] for request in work if request.status == 200}

            answers = asyncio.run(loop())
            expected = predict_run(run, files, top=1, device="cpu")
        differ, worst, near = 0, 0.0, 0
        for at, wanted in enumerate(expected):
            got = answers.get(at)
            if got is None:
                differ += 1
                continue
            close = any(
                abs(exit["confidence"] - t) < 1e-5 for exit, t in zip(got["exits"], policy.thresholds[:-1], strict=False)
            )
            same = got["name"] == wanted["label"] and got["exit"] == wanted["exit"]
            near += close and not same
            differ += not same and not close
            if got["exit"] == wanted["exit"]:
                worst = max(worst, abs(got["top"][0]["confidence"] - wanted["confidence"]))
        self.found["parity"] = {"images": len(expected), "differ": differ, "near_threshold": near, "largest_difference": worst}
        self.row("A8", f"other answers than `dynavit predict`, of {len(expected)}", differ, "0", "0", differ == 0, differ == 0)
        self.row("A8", "largest difference of a confidence", worst, "<= 1e-5", "0", worst <= 1e-5, worst == 0)

    def deadlines(self):
        """A9: answers on time at 0.8 load, deadline 3 s_1(B)."""
        options = self.options
        for model in ("accelerator", "cpu"):
            with Served(model, "D", *self.words) as served:
                mix = "60/25/15"
                rate = saturated(served, model, mix, options.seconds, 0)["rate"]
                fixed, each = served.lines[0]
                deadline = 3 * (fixed + each * served.most)
                work = offered(served, model, mix, 0.8 * rate, options.seconds, 400, f"&deadline_ms={deadline:.1f}")
            answered = [request for request in work if request.status == 200]
            refused = sum(request.status == 503 for request in work)
            on_time = sum(1e3 * (request.done - request.sent) <= deadline + 10 for request in answered)
            value = on_time / max(len(work) - refused, 1)
            whys = [request.answer["results"][0]["why"] for request in answered]
            self.found[f"deadlines {model}"] = {
                **latencies(work),
                "deadline_ms": deadline,
                "offered": len(work),
                "answered": len(answered),
                "refused": refused,
                "on_time": on_time,
                "unanswered": len(work) - len(answered) - refused,
                "by_deadline": whys.count("deadline"),
            }
            what = f"on time (+10 ms wire), {model}, {deadline:.0f} ms; {refused} of {len(work)} refused"
            good, best = value >= 0.99, value >= 0.999
            if self.found[f"deadlines {model}"]["void"]:
                what, good, best = f"{what}; void, the client lagged", None, None
            self.row("A9", what, value, ">= 0.99", ">= 0.999", good, best)

    # ---- Many minutes; the page

    def soak(self):
        """A10: see `soak.py`."""
        model, mix = "accelerator", "60/25/15"
        with Served(model, "D", *self.words) as served:
            rate = saturated(served, model, mix, self.options.seconds, 0)["rate"]
            white = _encoded(Image.new("L", (8, 8), 255), "PNG")
            found = soak(served, MIXES[mix], 0.8 * rate, self.options.soak, bodies(model)[0], white)
        self.found["soak"] = found
        wrong = sum(found["wrong"].values())
        bad = found["lost"] + found["doubled"] + found["hung"] + wrong + found["left_in_queue"] + abs(found["unaccounted"])
        requests, growth = sum(found["requests"].values()), found["growth"]
        what = f"lost, doubled, hung, wrong, left or unaccounted for in {self.options.soak:g} s, of {requests}"
        self.row("A10", what, int(bad), "0", "0", bad == 0, bad == 0)
        what = f"growth of memory in the last {2 / 3 * self.options.soak:.0f} s of it"
        self.row("A10", what, growth, "-", "-")

    def page(self, run):
        """A13: see `page_speed.py`."""
        import page_speed

        if not page_speed.available():
            print("A13 is left out: install chromium")
            return
        found, tests = page_speed.page(run), page_speed.browser_tests()
        self.found["page"] = {**found, "tests": tests}
        size, away = found["bytes"] / 1e3, len(found["elsewhere"])
        redraw, shown = (percentile(found[name], 0.99) for name in ("laid_out_ms", "shown_ms"))
        failed = sum(number for word, number in tests.items() if word != "passed")
        self.row("A13", "kB of the page", size, "<= 150", "<= 80", size <= 150, size <= 80)
        self.row("A13", f"requests to elsewhere, of {found['requests']}", away, "0", "0", away == 0, away == 0)
        self.row("A13", "ms from the slider to the new layout, p99", redraw, "<= 100", "<= 16", redraw <= 100, redraw <= 16)
        self.row("A13", "ms from the slider to the frame that shows it, p99", shown, "<= 100", "-", shown <= 100)
        what = f"browser tests that did not pass, of {sum(tests.values())}"
        self.row("A13", what, failed, "0", "0", failed == 0, failed == 0)


def _turned(schemes, by):
    """Another one begins in every repeat."""
    order = list(schemes)
    return order[by % len(order) :] + order[: by % len(order)]


def _plain(value):
    """For JSON, which has no NaN: None."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(rows):
    """The rows in Markdown, those that differ in the mix alone in one line.

    >>> cell = {"number": "A2", "measure": "D / C", "must": ">= 1.3", "value": {"ratio": 1.5, "interval": [1.4, 1.6], "n": 5}}
    >>> print(table([{**cell, "mix": "90/7/3", "reached": True}, {**cell, "mix": "60/25/15", "reached": False}]))
    | | measure | measured | must | reached |
    |---|---|---|---|---|
    | A2 | D / C, 90/7/3; 60/25/15 | 1.5 [1.4, 1.6]; 1.5 [1.4, 1.6] | >= 1.3; >= 1.3 | yes; **no** |
    """
    groups = {}
    for row in rows:
        groups.setdefault((row["number"], row["measure"]), []).append(row)
    lines = ["| | measure | measured | must | reached |", "|---|---|---|---|---|"]
    for (number, measure), cells in groups.items():
        mixes = "; ".join(cell["mix"] for cell in cells if cell["mix"])
        values = "; ".join(_cell(cell["value"]) for cell in cells)
        musts = [cell["must"] for cell in cells]
        must = musts[0] if len(set(musts)) == 1 and len(musts) > 2 else "; ".join(musts)
        marks = [{True: "yes", False: "**no**", None: "-"}[cell["reached"]] for cell in cells]
        reached = marks[0] if len(set(marks)) == 1 else "; ".join(marks)
        lines.append(f"| {number} | {measure}{', ' + mixes if mixes else ''} | {values} | {must} | {reached} |")
    return "\n".join(lines)


def _cell(value):
    """A ratio with its interval, where there is more than one repeat to tell it from."""
    if not isinstance(value, dict):
        return f"{value:.3g}" if isinstance(value, float) else str(value)
    void = f" (void: {value['void']})" if value.get("void") else ""
    spread = " [{:.3g}, {:.3g}]".format(*value["interval"]) if value["n"] > 1 else ""
    return f"{value['ratio']:.3g}{spread}{void}"


def minutes(options, wants):
    """About how long it takes; beside every measurement there are two seconds until the last answer."""
    each, mixes, total = (options.seconds + 2) * options.repeats, len(options.mixes), 0.0
    others = (options.litserve is not None) + (options.ray is not None)
    for model in options.models:
        schemes = len(options.schemes) - (model == "accelerator" and "A" in options.schemes) + others
        runs = schemes * wants("A1", "A2", "A3", "A4", "A5", "A6", "loads")
        if wants("loads") or (model != "t2t12" and wants("A3", "A4")):
            runs += 2 * len(options.loads) + 2 * (model != "accelerator") * wants("A4")
        total += each * mixes * runs + 3 * schemes * (runs > 0)
        total += (10 + options.overload_seconds) * (model != "t2t12") * wants("A6")
    total += 4 * (options.seconds + 2) * wants("A9") + 60 * (options.run is None) * wants("A7", "A8", "A13")
    total += (options.soak + options.seconds + 5) * wants("A10") + 10 * wants("A7") + 15 * wants("A8") + 60 * wants("A13")
    return total / 60


def digits_run(directory):
    """A cascade on digits, trained for a minute, with thresholds."""
    from dynavit import TrainConfig, train_run
    from dynavit.runs.calibrate import Goal, calibrate_run

    out = Path(directory) / "digits"
    train_run(TrainConfig(model="dvt_vit_digits", epochs=12, batch_size=64), out)
    calibrate_run(out, Goal(gmacs=0.0007), device="cpu")
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words = "such as A2,A5; loads: latencies at every load, of dvt_t2t_vit_12 too"
    parser.add_argument("--only", type=lambda text: text.split(","), help=words)
    parser.add_argument("--schemes", default="ACD", help="C and D at least; B too is slow")
    parser.add_argument("--litserve", metavar="PYTHON", help="that has litserve beside this package: scheme E")
    parser.add_argument("--ray", metavar="PYTHON", help="that has ray[serve] beside this package: scheme F")
    parser.add_argument("--models", type=lambda text: text.split(","), default=["accelerator", "cpu", "t2t12"])
    parser.add_argument("--mixes", type=lambda text: text.split(","), default=list(MIXES))
    parser.add_argument("--loads", type=lambda text: [float(word) for word in text.split(",")], default=[0.8])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each single measurement")
    parser.add_argument("--scale", type=float, default=20.0, help="times the costs of the sleeping accelerator")
    parser.add_argument("--overload-seconds", type=float, default=300.0)
    parser.add_argument("--soak", type=float, default=1800.0, metavar="SECONDS", help="how long A10 takes")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--resume", action="store_true", help="leave out what stands in --out already")
    parser.add_argument("--run", help="a calibrated run on digits, for A7, A8 and A13; one is trained if not given")
    parser.add_argument("--out")
    parser.add_argument("--table", type=Path, help="print a stored result as a table, and do nothing else")
    options = parser.parse_args()
    if options.table is not None:
        print(table(json.loads(options.table.read_text())["table"]))
        return
    bench = Bench(options)
    bench.commands.append(" ".join(["python", "benchmarks/serve/load.py", *sys.argv[1:]]))
    print(f"about {minutes(options, bench.wants):.0f} minutes", flush=True)
    for number in (signal.SIGINT, signal.SIGTERM):  # the first is ignored in the background of a shell
        signal.signal(number, signal.default_int_handler)
    try:
        measure_all(bench)
    except KeyboardInterrupt:
        print("stopped" + (f"; {options.out} has what was found, --resume goes on" if options.out else ""), file=sys.stderr)
        sys.exit(130)
    finally:  # what was found stays, also where something went wrong later
        store(bench)


def measure_all(bench):
    options = bench.options
    for model in options.models:
        if bench.wants("A1", "A2", "A3", "A4", "A5", "A6", "loads"):
            bench.run(f"{'+'.join(options.only or ['A1-A6'])} {model}", partial(bench.compare, model))
    if bench.wants("A9"):
        bench.run("A9", bench.deadlines)
    if bench.wants("A10"):
        bench.run("A10", bench.soak)
    alone = {"A7": bench.overhead, "A8": bench.parity, "A13": bench.page}
    wanted = [name for name in alone if bench.wants(name) and name not in bench.done]
    if wanted:
        with tempfile.TemporaryDirectory() as directory:
            run = options.run or digits_run(directory)
            for name in wanted:
                bench.run(name, partial(alone[name], run))


def store(bench):
    options = bench.options
    if options.out and bench.rows:
        names = ("seconds", "overload_seconds", "soak", "scale", "repeats", "mixes", "loads", "models", "schemes")
        settings = {name: getattr(options, name) for name in names}
        facts = {"commands": bench.commands, "machine": describe_machine(), **settings, "done": bench.done}
        write_json(options.out, _plain({**facts, "table": bench.rows, "details": bench.found}))


if __name__ == "__main__":
    main()
