"""Numbers about the service, for Prometheus: one registry per app, few labels, none that a client could choose.

Every image has exactly one end, so that after any run

    images_total + refused_total + cancelled_total + expired_total + failed_total + decode_errors_total = images received

Gauges are read from the scheduler when they are asked for: what is not counted up and down cannot drift.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.extras import require
from .engine import Observer
from .jobs import Batch
from .recent import Recent

TIMES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
logger = logging.getLogger("dynavit.serve")
FRESH = 0.2  # seconds that a text is given out again: fifty scrapes a second cost as much as five


class Metrics(Observer):
    """Counters and histograms, and the recent past in exact numbers for the live panel.

    Args:
        exits: how many the model has.
        build: labels of build_info.

    `gauges` gives, at a scrape, {name: value or {exit: value}} of the gauges in `GAUGES`; the service sets it.
    """

    def __init__(self, exits: int, build: dict[str, str]) -> None:
        self.gauges: Callable[[], dict[str, Any]] = dict
        client = require("prometheus_client", "serve")
        self.registry = client.CollectorRegistry()
        self.recent = Recent(exits)
        self._text, self._made, self._lock = b"", float("-inf"), threading.Lock()
        self._render = client.generate_latest

        def counter(name: str, about: str, *labels: str) -> Any:
            return client.Counter(f"dynavit_{name}", about, labels, registry=self.registry)

        def histogram(name: str, about: str, *labels: str, buckets: tuple[float, ...] = TIMES) -> Any:
            return client.Histogram(f"dynavit_{name}", about, labels, buckets=buckets, registry=self.registry)

        self.requests = counter("requests_total", "Requests answered", "route", "code")
        self.request_seconds = histogram("request_seconds", "From the header to the end of the answer", "route")
        self.received = counter("images_received_total", "Images that arrived; each has one of the ends below")
        self.images = counter("images_total", "Images answered", "exit", "why")
        self.refusals = counter("refused_total", "Images refused", "reason")
        self.cancellations = counter("cancelled_total", "Images whose client went away")
        self.expiries = counter("expired_total", "Images whose time was over before any answer")
        self.failures = counter("failed_total", "Images that the model failed on", "code")
        self.decode_errors = counter("decode_errors_total", "Images that could not be read", "format")
        self.decode_seconds = histogram("decode_seconds", "Reading and preparing an image", "format")
        self.queue_seconds = histogram("queue_seconds", "Waiting for an exit", "exit")
        self.stage_seconds = histogram("stage_seconds", "Running a batch through an exit", "exit")
        self.batch_sizes = histogram("batch_size", "Images of a batch", "exit", buckets=SIZES)
        self.regrouped = counter("regrouped_total", "Images run in a batch that joins several former batches", "exit")
        self.gmacs = counter("gmacs_total", "GMACs spent on answered images", "exit")
        twentieths = tuple(step / 20 for step in range(1, 21))
        self.confidence = histogram("confidence", "Confidence at each exit that was run", "exit", buckets=twentieths)
        self.slow_clients = counter("slow_clients_total", "Connections closed because a request did not arrive in time")
        self.step_errors = counter("step_errors_total", "Batches that raised an error")
        client.Gauge("dynavit_build_info", "Versions", list(build), registry=self.registry).labels(**build).set(1)
        self.registry.register(_Gauges(self, require("prometheus_client.core", "serve").GaugeMetricFamily))
        for exit in map(str, range(1, exits + 1)):  # so that a rate exists from the start
            for family in (
                self.queue_seconds,
                self.stage_seconds,
                self.batch_sizes,
                self.regrouped,
                self.gmacs,
                self.confidence,
            ):
                family.labels(exit)

    # ---- The ends of an image. `Service.answer` counts one of them for each.

    def count_answer(self, exit: int, why: str, gmacs: float, seconds: float) -> None:
        self.images.labels(exit, why).inc()
        self.gmacs.labels(exit).inc(gmacs)
        self.recent.answered(exit, gmacs, seconds)

    def count_refusal(self, reason: str) -> None:
        self.refusals.labels(reason).inc()
        self.recent.refused()

    def decoded(self, format: str, seconds: float) -> None:
        """Called by threads that decode."""
        self.decode_seconds.labels(format).observe(seconds)

    # ---- What the engine tells

    def waited(self, exit: int, seconds: float) -> None:
        self.queue_seconds.labels(exit).observe(seconds)

    def stepped(self, batch: Batch, seconds: float, confidences: NDArray[np.floating]) -> None:
        self.stage_seconds.labels(batch.exit).observe(seconds)
        self.batch_sizes.labels(batch.exit).observe(len(batch.jobs))
        self.regrouped.labels(batch.exit).inc(batch.regrouped)
        self.recent.batch(batch.exit, len(batch.jobs))
        for confidence in confidences.tolist():
            self.confidence.labels(batch.exit).observe(confidence)

    def raised(self, batch: Batch, error: BaseException) -> None:
        self.step_errors.inc()
        logger.error("a batch of %d at exit %d failed", len(batch.jobs), batch.exit, exc_info=error)

    # ---- The text

    def text(self) -> bytes:
        """For Prometheus."""
        with self._lock:
            now = time.monotonic()
            if now - self._made >= FRESH:
                self._text, self._made = self._render(self.registry), now
            return self._text

    def totals(self) -> dict[str, float]:
        """Each counter, summed over its labels."""
        found: dict[str, float] = {}
        for family in self.registry.collect():
            for sample in family.samples:
                if sample.name.endswith("_total"):
                    name = sample.name.removeprefix("dynavit_")
                    found[name] = found.get(name, 0) + sample.value
        return found


GAUGES = {
    "queue_jobs": "Images waiting for an exit",
    "running_jobs": "Images in the running batch",
    "parked_bytes": "Carried between exits now",
    "reserved_bytes": "Reserved for what images will carry",
    "connections": "Open connections",
    "bypass_max": "How often images waiting for an exit were passed over",
    "budget_level": "The server's budget as a position on the curve",
    "expected_gmacs": "Mean GMACs at the server's budget, from calibration",
    "capacity_images_per_second": "From measured costs and the present mix of exits",
}


class _Gauges:
    """Read when they are asked for."""

    def __init__(self, metrics: Metrics, family: Any) -> None:
        self.metrics, self.family = metrics, family

    def collect(self) -> Iterator[Any]:
        values = self.metrics.gauges()
        for name, about in GAUGES.items():
            if (value := values.get(name)) is None:
                continue
            by_exit = isinstance(value, dict)
            gauge = self.family(f"dynavit_{name}", about, labels=["exit"] if by_exit else [])
            for labels, number in (([str(k)], v) for k, v in value.items()) if by_exit else [([], value)]:
                gauge.add_metric(labels, number)
            yield gauge

    def describe(self) -> list[Any]:
        return []  # nothing is read while registering
