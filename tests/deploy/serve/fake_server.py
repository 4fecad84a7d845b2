"""A server that answers as the specification says, without a model: for states of the page that a real one seldom shows.

Answers follow from the bytes of the image. `Fake` holds what a test changes while it runs.
"""

import base64
import hashlib
import io
import json
import random
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from PIL import Image, ImageDraw

from dynavit.deploy.serve.page import page

CLASSES = ["tabby cat", "tiger cat", "red fox", "lighthouse", "steam locomotive", "coffee mug", "great grey owl", "harbour"]
COSTS = {3: [0.468, 1.486, 3.591], 2: [0.00029, 0.00144], 1: [1.26]}
GRIDS = {3: [[7, 7], [10, 10], [14, 14]], 2: [[2, 2], [4, 4]], 1: [[14, 14]]}
FORMATS = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"RIFF": "webp"}


class Fake:
    """
    Attributes:
        classes: names of the model's answers.
        token: that every request must bring; "" for none.
        refuse: how many of the next requests for answers are refused, and with which (status, body, Retry-After).
        disagree: the server leaves at the last exit, whatever it is asked.
        late: seconds that a prediction takes.
    """

    def __init__(self, exits=3, calibrated=True, explain=True, samples=True, port=0, version="a1b2c3d4e5"):
        self.exits, self.calibrated, self.explain, self.version = exits, calibrated, explain, version
        self.classes, self.token, self.refuse, self.disagree, self.late = list(CLASSES), "", [], False, 0.0
        self.samples = [{"name": f"sample {n + 1}", "data_uri": data_uri(picture(n))} for n in range(8 if samples else 0)]
        self.budgets, self.counts, self.draining, self.asked = [], Counter(), False, Counter()
        self.limits = {"max_image": 10 << 20, "max_pixels": 50_000_000, "max_side": 16_384, "max_streams": 16}
        self.preprocess = {"kind": "files", "image_size": [224, 224], "crop_pct": 0.9}
        self.start(port)

    def start(self, port=0):
        fake = self

        class Handler(Answers):
            server_fake = fake

        self.http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.http.daemon_threads, self.running = True, True
        self.port = self.http.server_address[1]
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def stop(self):
        self.running = False  # streams end
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.port}/"

    # ---- Answers

    def info(self):
        costs, grids = COSTS[self.exits], GRIDS[self.exits]
        exits = [
            {"exit": k + 1, "grid": grids[k], "gmacs": costs[k] - (costs[k - 1] if k else 0), "cumulative_gmacs": costs[k]}
            for k in range(self.exits)
        ]
        times = [{"exit": k + 1, "fixed_ms": 3.8, "per_image_ms": 7.5 * 2**k} for k in range(self.exits)]
        return {
            "model": {"name": "dvt_t2t_vit_12", "version": self.version},
            "dynavit_version": "0.1.0",
            "classes": self.classes,
            "exits": exits,
            "costs": times,
            "limits": self.limits,
            "preprocess": self.preprocess,
            "explain": self.explain,
            "budget": {"asked": None, "applied": {"thresholds": self.points()[-4]["thresholds"]}} if self.calibrated else None,
        }

    def points(self):
        """Thresholds that only rise."""
        count, costs, found = 12, COSTS[self.exits], []
        for at in range(count):
            level = at / (count - 1)
            threshold = 0.0 if at == 0 else 1e8 if at == count - 1 else 0.35 + 0.6 * level
            shares = [(1 - level) ** 1.5]
            shares += [(1 - shares[0]) * (1 - level) if k + 2 < self.exits else None for k in range(self.exits - 1)]
            shares[-1] = 1 - sum(share for share in shares[:-1])
            right = 0.652 + 0.142 * (1 - (1 - level) ** 2.6) - 0.004 * level**8
            found.append(
                {
                    "level": level,
                    "thresholds": [threshold] * (self.exits - 1),
                    "gmacs": sum(share * cost for share, cost in zip(shares, costs, strict=True)),
                    "accuracy": right,
                    "accuracy_ci": [right - 0.004, right + 0.004],
                    "shares": shares,
                }
            )
        return found

    def curve(self):
        points = self.points() if self.calibrated and self.exits > 1 else []
        calibration = {"data": "imagenet", "samples": 25_000}
        return {"calibrated": bool(points), "points": points, "calibration": calibration, "interpolated": False, "note": ""}

    def swept(self, image):
        """Confidences from the bytes; later exits are a little surer."""
        dice = random.Random(hashlib.sha256(image).digest())
        label, base, costs = dice.randrange(len(self.classes)), dice.uniform(0.35, 0.75), COSTS[self.exits]
        found = []
        for k in range(self.exits):
            here = label if k or dice.random() < 0.6 else (label + 1) % len(self.classes)
            base += (1 - base) * dice.uniform(0.2, 0.7) if k else 0
            answer = {"exit": k + 1, "label": here, "name": self.classes[here], "confidence": base}
            found.append(answer | {"gmacs": costs[k], "compute_ms": 12.0 * (k + 1)})
        return found

    def sweep(self, image):
        exits, levels = self.swept(image), []
        for point in self.points() if self.exits > 1 and self.calibrated else []:
            exit, _ = decide(exits, point["thresholds"], self.exits)
            said = exits[exit - 1]
            levels.append({**point, "exit": exit, "label": said["label"], "confidence": said["confidence"]})
        return {"exits": exits, "levels": levels}

    def predict(self, image, budget):
        exits, thresholds = self.swept(image), [1e8] * (self.exits - 1)
        if "level" in budget:
            points = self.points()
            thresholds = points[round(float(budget["level"]) * (len(points) - 1))]["thresholds"]
        exit, why = decide(exits, thresholds, int(budget.get("max_exit", self.exits)))
        if self.disagree:
            exit, why = self.exits, "last"
        said, costs = exits[exit - 1], COSTS[self.exits]
        self.counts[exit] += 1
        cost = {"gmacs": costs[exit - 1], "queue_ms": 2.1, "compute_ms": 28.4, "total_ms": 31.2, "batch": [1] * exit}
        run = [
            {**{key: one[key] for key in ("exit", "label", "confidence", "gmacs")}, "threshold": None} for one in exits[:exit]
        ]
        applied = {"thresholds": thresholds, "max_exit": self.exits, "expected_gmacs": 1.2, "expected_accuracy": 0.789}
        answer = {"label": said["label"], "name": said["name"], "confidence": said["confidence"], "top": []}
        return {
            "request_id": "fake",
            "model": {"name": "dvt_t2t_vit_12", "version": self.version},
            "budget": {"asked": budget, "applied": applied, "source": "request", "clipped": False},
            "results": [{"id": None, "status": 200, **answer, "exit": exit, "why": why, "exits": run, "cost": cost}],
            "failed": 0,
        }

    def maps(self, image, exit):
        rows, columns = GRIDS[self.exits][exit - 1]
        dice = random.Random(hashlib.sha256(image).digest())
        y, x = dice.uniform(0.3, 0.7), dice.uniform(0.3, 0.7)
        raw = [
            [2.0 ** (-22 * ((i / rows - y) ** 2 + (j / columns - x) ** 2)) + 0.03 * dice.random() for j in range(columns)]
            for i in range(rows)
        ]
        total = sum(map(sum, raw))
        attention = [[value / total for value in row] for row in raw]
        change = None if exit == 1 else [[value * dice.random() for value in row] for row in attention]
        return {"grid": [rows, columns], "attention": attention, "change": change}

    def stats(self):
        counts = [self.counts[k + 1] for k in range(self.exits)]
        total, costs, sizes = sum(counts), COSTS[self.exits], [6.2, 2.9, 1.0]
        exits = [
            {"exit": k + 1, "images": n, "share": n / total if total else None, "batch": sizes[k] if n else None}
            for k, n in enumerate(counts)
        ]
        return {
            "window_seconds": 60,
            "images": total,
            "images_per_second": total / 5,
            "refused": self.asked["refused"],
            "mean_gmacs": sum(c * g for c, g in zip(counts, costs, strict=True)) / total if total else None,
            "latency_ms": {"p50": 18.2, "p95": 61.0, "p99": 96.4} if total else dict.fromkeys(("p50", "p95", "p99")),
            "exits": exits,
            "queue": 3,
            "running": 1,
            "connections": 2,
            "draining": self.draining,
            "totals": {},
        }


def decide(exits, thresholds, cap):
    for exit, said in enumerate(exits, 1):
        if exit == len(exits):
            return exit, "last"
        if said["confidence"] >= thresholds[exit - 1]:
            return exit, "confident"
        if exit == cap:
            return exit, "cap"
    raise AssertionError("an image leaves somewhere")


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    @property
    def fake(self):
        return self.server_fake

    def parse_request(self):
        if not self.fake.running:  # a connection that outlived the server
            self.close_connection = True
            return False
        return super().parse_request()

    def do_GET(self):
        path = urlsplit(self.path).path
        if path == "/":
            content, headers = page()
            return self.answer(200, content, {"Content-Type": "text/html; charset=utf-8", **headers})
        if not self.allowed():
            return None
        if path == "/v1/stream":
            return self.stream()
        found = {"/v1/info": self.fake.info, "/v1/curve": self.fake.curve, "/v1/stats": self.fake.stats}
        found["/v1/samples"] = lambda: {"samples": self.fake.samples}
        if path not in found:
            return self.json(404, {"error": "there is nothing at this address", "code": "not_found"})
        return self.json(200, found[path]())

    def do_POST(self):
        image = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if not self.allowed():
            return None
        address = urlsplit(self.path)
        query = dict(parse_qsl(address.query))
        self.fake.asked[address.path] += 1
        if self.fake.refuse:
            status, body, wait = self.fake.refuse.pop(0)
            self.fake.asked["refused"] += 1
            return self.json(status, {"request_id": "fake", **body}, {"Retry-After": str(wait)} if wait else {})
        if not any(image.startswith(magic) for magic in FORMATS):
            return self.json(415, {"error": "this is neither JPEG nor PNG nor WebP", "code": "format", "request_id": "fake"})
        try:
            Image.open(io.BytesIO(image)).verify()
        except Exception:
            return self.json(422, {"error": "the image cannot be decoded", "code": "undecodable", "request_id": "fake"})
        if address.path == "/v1/sweep":
            return self.json(200, self.fake.sweep(image))
        if address.path == "/v1/explain":
            return self.json(200, self.fake.maps(image, int(query["exit"])))
        self.fake.budgets.append(query)
        time.sleep(self.fake.late)
        return self.json(200, self.fake.predict(image, query))

    def allowed(self):
        if self.fake.token and self.headers["Authorization"] != f"Bearer {self.fake.token}":
            self.json(401, {"error": "a token is needed", "code": "unauthorised", "request_id": "fake"})
            return False
        return True

    def stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        while self.fake.running:
            try:
                self.wfile.write(f"data: {json.dumps(self.fake.stats())}\n\n".encode())
                self.wfile.flush()
            except OSError:
                break
            for _ in range(20):
                if self.fake.running:
                    time.sleep(0.05)
        self.close_connection = True

    def json(self, status, body, headers=None):
        self.answer(status, json.dumps(body).encode(), {"Content-Type": "application/json", **(headers or {})})

    def answer(self, status, body, headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def picture(number, size=(240, 180)):
    """A small landscape as PNG."""
    dice = random.Random(number)
    width, height = size
    image = Image.new("RGB", size, (110 + 12 * number, 160, 230 - 14 * number))
    draw = ImageDraw.Draw(image)
    draw.ellipse([(dice.randrange(20, 180), 15), (dice.randrange(190, 230), 70)], fill=(250, 220, 130))
    for hill in range(3):
        shade = 90 - 22 * hill + 6 * number
        points = [(x, height * (0.5 + 0.15 * hill) + dice.randrange(-22, 22)) for x in range(0, width + 40, 40)]
        draw.polygon([(0, height), *points, (width + 40, height)], fill=(shade // 2, shade + 50, shade))
    return png(image)


def png(image):
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def data_uri(image):
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"
