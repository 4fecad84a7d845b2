"""Load on the whole service over HTTP: what early exit and regrouping gain, and the acceptance table A1 to A9.

    python benchmarks/serve/load.py --out FILE          everything; hours with the defaults, and the machine for itself
    python benchmarks/serve/load.py --seconds 4 --repeats 1 --overload-seconds 30 --out FILE        every row once, ten minutes
    python benchmarks/serve/load.py --only A2,A5 --models accelerator --mixes 60/25/15 --seconds 4 --repeats 1     a short look
    python benchmarks/serve/load.py --table FILE        a stored result as a table for docs/serve_scheduler.md

Four ways to schedule (`schemes.py`) stand behind the same service, each in a process of its own, and take turns; LitServe
(`lit_scheme.py`), if it is installed, is a fifth. The exit mix is exact: nobody is sure, and each request has a seeded
`max_exit`. Images per second are those of a closed loop with many requests under way; latencies are those of an open loop with
Poisson arrivals, from the intended time of sending (`generator.py`). Beside them stands what the simulator predicts from the
costs that the server measured. Ratios have 95 % bootstrap intervals over the repeats. A model that sleeps instead of computing
stands in for an accelerator, and is named so.
"""

import argparse
import asyncio
import base64
import io
import json
import math
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from generator import Client, Request, closed_loop, open_loop, percentile, requests
from PIL import Image
from simulate import MIXES, Scheduler, Shrinking, arrivals, make, simulate, whole_cascade

from dynavit.bench.machine import describe_machine
from dynavit.common.files import write_json

HERE = Path(__file__).parent
AT_ONCE = {"accelerator": 192, "cpu": 48, "t2t12": 48}
LARGEST_LAG = 0.005  # seconds; p99 of the client's own
MUST = {"A1": (4.0, 2.3, 1.5, 1.1), "A2": (1.35, 1.25, 1.1, 1.0), "A3": 1.15, "A4": 0.5, "A5": 0.15}
GOAL = {"A1": (5.3, 2.8, 1.8, 1.2), "A2": (1.55, 1.4, 1.18, 1.04), "A3": 1.05, "A4": 0.3, "A5": 0.07}


class Served:
    """A server process."""

    def __init__(self, model, scheme, *words):
        environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        script = ["lit_scheme.py"] if scheme == "E" else ["schemes.py", "--scheme", scheme]
        command = [sys.executable, str(HERE / script[0]), *script[1:], "--model", str(model), *words]
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

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(40)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # LitServe's workers too

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
    if served.scheme != "E":
        return Client(served.address, encoded, kind)
    text = base64.b64encode(encoded[0]).decode()
    return Client(
        served.address, [json.dumps({"b64": text, "max_exit": cap}).encode() for cap in (1, 2, 3)], "application/json"
    )


def work_for(served, mix, count, seed, extra=""):
    work = requests(MIXES[mix], count, seed, extra, images=4)
    for request in work if served.scheme == "E" else ():
        request.path, request.body = "/predict", request.cap - 1
    return work


def saturated(served, model, mix, seconds, seed):
    """Images per second with many requests under way, without the first fifth of the time."""

    async def run():
        client = client_of(served, model)
        work = work_for(served, mix, 10**5, seed)
        begun = await closed_loop(client, work, AT_ONCE.get(model, 64), seconds)
        client.close()
        return begun

    before = served.cpu()
    begun = asyncio.run(run())
    answered = [request for request in begun if request.status == 200]
    start = begun[0].meant + 0.2 * seconds
    end = begun[0].meant + seconds
    inside = [request for request in answered if start <= request.done <= end]
    if not inside:
        raise RuntimeError(
            f"scheme {served.scheme} answered nothing within {seconds:g} s; a longer --seconds, a quieter machine"
        )
    batches = [[] for _ in range(3)]
    for request in inside:
        for at, size in enumerate(request.answer["results"][0]["cost"]["batch"]):
            batches[at].append(size)
    return {
        "rate": len(inside) / (end - start),
        "failed": len(begun) - len(answered),
        "batch": [statistics.mean(sizes) if sizes else None for sizes in batches],
        "cpu_per_image": (served.cpu() - before) / max(len(answered), 1),
    }


def offered(served, model, mix, rate, seconds, seed, extra=""):
    """The requests of an open loop."""

    async def run():
        client = client_of(served, model)
        work = work_for(served, mix, max(int(rate * seconds), 20), seed, extra)
        await open_loop(client, work, rate, seed)
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


def predicted(lines, most, mix, kind=Scheduler):
    """Images per second by the simulator, with these costs."""
    return simulate(make(kind, lines, most), arrivals(MIXES[mix], 1e5, 3000, 0)).rate


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
        self.options, self.rows, self.found = options, [], {}
        self.words = ("--scale", str(options.scale))

    def row(self, name, what, value, must, goal, good=None, best=None, mix=None):
        """A line of the table. `good`, `best`: whether must and goal are reached."""
        self.rows.append(
            {
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

    def compare(self, model, schemes):
        """Rates of all schemes at all mixes in turn; then latencies at shares of C's rate. Rows A1 to A6 follow from it."""
        options, rates, sims = self.options, {}, {}
        with ExitStack() as stack:
            servers = {scheme: stack.enter_context(Served(model, scheme, *self.words)) for scheme in schemes}
            for repeat in range(options.repeats):
                for mix in options.mixes:
                    for scheme in _turned(schemes, repeat):
                        found = saturated(servers[scheme], model, mix, options.seconds, repeat)
                        rates.setdefault((mix, scheme), []).append(found)
            for mix in options.mixes:
                lines, most = servers["D"].lines, servers["D"].most
                sims[mix] = {
                    "A": whole_cascade(lines, most),
                    "C": predicted(lines, most, mix, Shrinking),
                    "D": predicted(lines, most, mix),
                }
            self.found[model] = {
                "lines_ms": servers["D"].lines,
                "rates": {f"{mix} {scheme}": each for (mix, scheme), each in rates.items()},
                "predicted": sims,
                "latency": {},
            }
            self.ratios(model, rates, sims)
            if self.wants("A3", "A4", "loads"):
                self.delays(model, servers, rates)
            if self.wants("A6") and model != "t2t12":
                self.overload(model, servers["D"], rates)

    def ratios(self, model, rates, sims):
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
            if "E" in each:
                value = interval([ours / theirs for ours, theirs in zip(each["D"], each["E"], strict=True)])
                self.row("E", f"images/s, D / LitServe, {model}", value, "-", "-", mix=mix)
            for scheme in ("A", "C", "D"):
                if scheme in each and self.wants("A5"):
                    off = statistics.median(each[scheme]) / sims[mix][scheme] - 1
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
        offered(served, model, mix, 2 * rate, min(options.seconds, 5), 1)  # the queue is full
        before = served.memory()
        work = offered(served, model, mix, 2 * rate, options.overload_seconds, 300)
        growth = served.memory() / before - 1
        good, refused = ([request for request in work if request.status == status] for status in (200, 503))
        goodput = len(good) / (max(request.done for request in work) - work[0].meant) / rate
        late = percentile([request.latency for request in good], 0.99) / (256 / rate)
        told = 1e3 * percentile([request.done - request.sent for request in refused], 0.99)
        statuses = Counter(str(request.status) for request in work)
        others = len(work) - len(good) - len(refused)
        self.found[f"overload {model}"] = {"mix": mix, "statuses": statuses, "goodput": goodput * rate, **latencies(work)}
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
        self.row(
            "A6", f"p99 of accepted / (max_queue / capacity), {model}", late, "<= 1.2", "<= 1.05", late <= 1.2, late <= 1.05
        )
        self.row(
            "A6",
            f"ms to a refusal, p99 ({len(refused)} refused, {others} lost), {model}",
            told,
            "<= 100",
            "<= 30",
            told <= 100,
            told <= 30,
        )
        what = f"growth of memory in {options.overload_seconds:g} s, {model}"
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
            self.row("A9", what, value, ">= 0.99", ">= 0.999", value >= 0.99, value >= 0.999)


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


def minutes(options, wants, litserve):
    """About how long it takes, without starting and training."""
    seconds, mixes = options.seconds * options.repeats, len(options.mixes)
    total = 0.0
    for model in options.models:
        schemes = (2 if model == "accelerator" else 3) + litserve
        total += seconds * mixes * schemes * wants("A1", "A2", "A3", "A4", "A5", "A6", "loads")
        total += seconds * mixes * 2 * len(options.loads) * wants("A3", "A4", "loads")
        total += seconds * mixes * 2 * (model != "accelerator") * wants("A4")
        total += (5 + options.overload_seconds) * (model != "t2t12") * wants("A6")
    return (total + 4 * options.seconds * wants("A9") + 90) / 60


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
    parser.add_argument("--only", type=lambda text: text.split(","), help="such as A2,A5; loads: latencies at every load")
    parser.add_argument("--models", type=lambda text: text.split(","), default=["accelerator", "cpu", "t2t12"])
    parser.add_argument("--mixes", type=lambda text: text.split(","), default=list(MIXES))
    parser.add_argument("--loads", type=lambda text: [float(word) for word in text.split(",")], default=[0.8])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each single measurement")
    parser.add_argument("--scale", type=float, default=20.0, help="times the costs of the sleeping accelerator")
    parser.add_argument("--overload-seconds", type=float, default=300.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--run", help="a calibrated run on digits, for A7 and A8; one is trained if not given")
    parser.add_argument("--out")
    parser.add_argument("--table", type=Path, help="print a stored result as a table, and do nothing else")
    options = parser.parse_args()
    if options.table is not None:
        print(table(json.loads(options.table.read_text())["table"]))
        return
    bench, litserve = Bench(options), find_spec("litserve") is not None
    print(f"about {minutes(options, bench.wants, litserve):.0f} minutes")
    if not litserve:
        print("E (LitServe) is not installed and is left out")
    try:
        measure_all(bench, litserve)
    finally:  # what was found stays, also where something went wrong later
        store(bench)


def measure_all(bench, litserve):
    for model in bench.options.models:
        if bench.wants("A1", "A2", "A3", "A4", "A5", "A6", "loads"):
            bench.compare(model, ("CD" if model == "accelerator" else "ACD") + "E" * litserve)
    with tempfile.TemporaryDirectory() as directory:
        if bench.wants("A7", "A8"):
            run = bench.options.run or digits_run(directory)
            if bench.wants("A7"):
                bench.overhead(run)
            if bench.wants("A8"):
                bench.parity(run)
    if bench.wants("A9"):
        bench.deadlines()


def store(bench):
    options = bench.options
    if options.out and bench.rows:
        settings = {
            name: getattr(options, name)
            for name in ("seconds", "overload_seconds", "scale", "repeats", "mixes", "loads", "models")
        }
        command = " ".join(["python", "benchmarks/serve/load.py", *sys.argv[1:]])
        facts = {"command": command, "machine": describe_machine(), **settings}
        write_json(options.out, _plain({**facts, "table": bench.rows, "details": bench.found}))


if __name__ == "__main__":
    main()
