"""The service behind the routes: budgets in force, images on their way, and the one place where an image's end is counted."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib.metadata import version
from typing import Any

from .budget import TARGETS, Budget, BudgetError
from .curve import NOBODY, Applied
from .engine import Engine, EngineStopped, JobExpired, JobFailed, Outcome
from .images import Decoder, NoImage
from .jobs import Refused
from .limits import Limits
from .metrics import Metrics
from .model import ServedModel
from .problems import Problem, internal, refused
from .settings import Settings

Explainer = Callable[[Any, int], dict[str, Any]]  # (entry, exit from 1) -> {"grid", "attention", "change"}
STATS_FRESH = 0.2  # seconds


@dataclass(frozen=True)
class Sample:
    """A picture to try the model with: PNG bytes, held in memory."""

    name: str
    png: bytes


@dataclass(frozen=True)
class Upload:
    """One encoded image of a request, or one input of the model that was prepared elsewhere."""

    data: bytes | memoryview = b""
    id: str | None = None
    entry: Any = None


@dataclass(frozen=True)
class InForce:
    """The budget of one request: what was asked for, and what follows from it."""

    asked: Budget | None
    budget: Budget
    applied: Applied
    source: str


class Service:
    """One model, its engine, and what requests may do with them.

    Args:
        explainer: attention maps of one prepared image at one exit; None: there are none.
        samples: pictures for the page.
    """

    def __init__(
        self,
        model: ServedModel,
        engine: Engine,
        settings: Settings,
        limits: Limits,
        metrics: Metrics,
        explainer: Explainer | None = None,
        samples: Sequence[Sample] = (),
    ) -> None:
        self.model, self.engine, self.settings, self.limits, self.metrics = model, engine, settings, limits, metrics
        self.explainer, self.samples = explainer, tuple(samples)
        self.decoder = Decoder(limits, model.prepare, metrics.decoded)
        self.budget, low, high = settings.budgets()
        self.curve = model.curve.within(low, high, engine.costs)
        metrics.gauges = self.gauges
        self.in_force(None)  # a budget of the server that cannot be met is refused before it listens
        self.started = False
        self.streams = 0
        self.explaining, self._one_at_a_time = 0, asyncio.Lock()
        self.stopping = asyncio.Event()
        self._stats: dict[str, Any] = {"draining": None}
        self._stats_at = 0.0
        self.connections: Callable[[], int] = lambda: 0

    # ---- Life

    async def start(self) -> None:
        self.engine.start()
        self.started = True

    async def drain(self, timeout: float | None = None) -> bool:
        """Take nothing new and finish what was admitted; whether that was done in time."""
        self.stopping.set()
        return await self.engine.drain(self.limits.drain_time if timeout is None else timeout)

    async def stop(self) -> None:
        """Answer 503 to whatever is left."""
        self.stopping.set()
        self.engine.stop()
        self.decoder.close()

    @property
    def live(self) -> bool:
        return self.engine.alive()

    @property
    def ready(self) -> bool:
        full = self.settings.unready_when_full and self.engine.scheduler.snapshot()["jobs"] >= self.limits.max_queue
        return self.live and not self.stopping.is_set() and not full

    def check_ready(self) -> None:
        """Refuse before a body is read."""
        if self.stopping.is_set():
            raise self.refusal("draining", 5.0)
        if not self.live:
            raise self.refusal("not_ready", 5.0)

    # ---- Budgets

    def in_force(self, asked: Budget | None) -> InForce:
        """A request's own target or else the server's; each limit likewise."""
        asked = asked or Budget()
        own: dict[str, Any] = {field.name: getattr(asked, field.name) for field in fields(Budget)}
        own = {name: value for name, value in own.items() if value != getattr(Budget, name)}
        if asked.target is not None:
            own = {**dict.fromkeys(TARGETS), **own}
        budget = replace(self.budget, **own)
        source = "request" if asked.target is not None else "server"
        try:
            return InForce(asked if asked != Budget() else None, budget, self.curve.apply(budget, self.engine.costs), source)
        except BudgetError as error:
            raise budget_problem(error) from error

    def set_budget(self, budget: Budget) -> InForce:
        """The server's budget from now on. Images that were admitted keep theirs."""
        before, self.budget = self.budget, budget
        try:
            return self.in_force(None)
        except Problem:
            self.budget = before
            raise

    # ---- Images

    async def answer(self, upload: Upload, force: InForce, client: str, arrived: float, priority: float = 1.0) -> Outcome:
        """The outcome of one image, or a Problem. Whatever happens is counted once.

        Args:
            arrived: when the last byte of the request came, by the monotonic clock.
            priority: 2 gets half the turns of 1.
        """
        self.metrics.received.inc()
        try:
            async with asyncio.timeout_at(self._loop_time(arrived + self.limits.total_time)):
                outcome = await self._run(upload, force, client, arrived, priority)
        except NoImage as problem:
            self.metrics.decode_errors.labels(problem.format).inc()
            raise
        except Problem as problem:
            if problem.status in (429, 503):
                self.metrics.count_refusal(problem.code)
            elif problem.status == 504:
                self.metrics.expiries.inc()
            else:
                self.metrics.failures.labels(problem.code).inc()
            raise
        except TimeoutError:
            self.metrics.expiries.inc()
            raise Problem(504, "total_time", f"there was no answer within {self.limits.total_time:g} s") from None
        except asyncio.CancelledError:
            self.metrics.cancellations.inc()
            raise
        except Exception:
            self.metrics.failures.labels("internal").inc()
            raise
        gmacs = self.model.exits[len(outcome.exits) - 1].cumulative_gmacs  # also of exits run beyond the answer's
        self.metrics.count_answer(outcome.exit, outcome.why, gmacs or 0.0, time.monotonic() - arrived)
        return outcome

    async def _run(self, upload: Upload, force: InForce, client: str, arrived: float, priority: float) -> Outcome:
        budget = force.budget
        deadline = None if budget.deadline_ms is None else arrived + budget.deadline_ms / 1e3
        self._early_refusal(client, deadline)
        entry = upload.entry if upload.entry is not None else await self.decoder(upload.data)
        try:
            return await self.engine.submit(
                entry,
                force.applied,
                client,
                deadline,
                on_deadline=budget.on_deadline,
                priority=priority,
                degrade=budget.degrade,
            )
        except Refused as refusal:
            raise self.refusal(refusal.reason, refusal.retry_after) from None
        except JobExpired:
            raise Problem(504, "deadline", "the deadline came before exit 1 had answered") from None
        except JobFailed as failure:
            raise model_failed(failure) from failure
        except EngineStopped:
            raise self.refusal("draining" if self.stopping.is_set() else "not_ready", 5.0) from None

    def _early_refusal(self, client: str, deadline: float | None) -> None:
        """An image that would be refused anyway is not decoded first."""
        scheduler = self.engine.scheduler
        if reason := scheduler.refusal(time.monotonic(), client, deadline):
            raise self.refusal(reason, scheduler.expected_wait())

    def all_exits(self) -> InForce:
        """Every exit is run, whatever it says."""
        exits = len(self.model.exits)
        return InForce(None, Budget(), Applied((NOBODY,) * (exits - 1), exits), "request")

    async def explain(self, upload: Upload, exit: int) -> dict[str, Any]:
        """Maps of one image at one exit: one at a time, when the model is idle or after a second."""
        if self.explainer is None:
            raise Problem(404, "no_explainer", "this server shows no maps", hint="serve a run instead of a bundle")
        if self.explaining > self.limits.max_explain:
            raise self.refusal("explain_full", 1.0)
        self.explaining += 1
        try:
            entry = await self.decoder(upload.data)
            async with self._one_at_a_time:
                return await self.engine.aside(partial(self.explainer, entry, exit))
        except EngineStopped:
            raise self.refusal("draining", 5.0) from None
        finally:
            self.explaining -= 1

    def refusal(self, reason: str, retry_after: float) -> Problem:
        return refused(reason, retry_after, overload_status=self.limits.overload_status)

    @staticmethod
    def _loop_time(monotonic: float) -> float:
        """The event loop's clock is the monotonic one, but nobody promises it."""
        return asyncio.get_running_loop().time() + monotonic - time.monotonic()

    # ---- Facts

    def stats(self) -> dict[str, Any]:
        """The last minute and the present moment; all who watch share it for a while."""
        if time.monotonic() - self._stats_at > STATS_FRESH or self._stats["draining"] != self.stopping.is_set():
            now = self.engine.scheduler.snapshot()
            present = {"queue": sum(now["queued"]), "running": now["running"], "connections": self.connections()}
            self._stats = {**self.metrics.recent.summary(), **present, "draining": self.stopping.is_set()}
            self._stats["totals"] = self.metrics.totals()
            self._stats_at = time.monotonic()
        return self._stats

    def info(self) -> dict[str, Any]:
        """Model, exits, costs, limits."""
        model, now = self.model, self.engine.scheduler.snapshot()
        lines = self.engine.costs.lines
        return {
            "model": {"name": model.name, "version": model.version},
            "dynavit_version": version("dynavit"),
            "classes": model.classes,
            "exits": [
                {
                    "exit": at,
                    "grid": exit.grid and list(exit.grid),
                    "gmacs": exit.gmacs,
                    "cumulative_gmacs": exit.cumulative_gmacs,
                    "state_bytes": exit.state_bytes,
                }
                for at, exit in enumerate(model.exits, 1)
            ],
            "costs": [
                {
                    "exit": at,
                    "fixed_ms": 1e3 * line.fixed,
                    "per_image_ms": 1e3 * line.each,
                    "profitable_batch": now["profitable"][at - 1],
                    "largest_batch": now["batch_limits"][at - 1],
                }
                for at, line in enumerate(lines, 1)
            ],
            "limits": self.limits.to_dict(),
            "preprocess": model.preprocess,
            "calibrated": model.curve.calibrated,
            "explain": self.explainer is not None,
            "samples": len(self.samples),
            "notes": model.notes,
        }

    def gauges(self) -> dict[str, Any]:
        """For metrics, read from the scheduler."""
        now, applied = self.engine.scheduler.snapshot(), self.in_force(None).applied
        return {
            "queue_jobs": dict(enumerate(now["queued"], 1)),
            "running_jobs": now["running"],
            "parked_bytes": now["parked_bytes"],
            "reserved_bytes": now["reserved_bytes"],
            "connections": self.connections(),
            "bypass_max": dict(enumerate(now["bypass"], 1)),
            "budget_level": self.level(applied),
            "expected_gmacs": applied.expected_gmacs,
            "capacity_images_per_second": now["capacity"],
        }

    def level(self, applied: Applied) -> float | None:
        """The position on the curve of thresholds that stand on it."""
        known = [point.thresholds for point in self.curve.points]
        return self.curve.level_of(known.index(applied.thresholds)) if applied.thresholds in known else None


def budget_problem(error: BudgetError) -> Problem:
    """422, with what can be reached."""
    ends = [f"{name} from {least:.4g} to {most:.4g}" for name, (least, most) in error.reachable.items()]
    return Problem(422, "budget", str(error), hint=f"reachable: {', '.join(ends)}" if ends else None)


def model_failed(failure: JobFailed) -> Problem:
    """500. What went wrong stands in the log."""
    if failure.reason == "not_finite":
        return Problem(500, "not_finite", "the model's output about this image is not finite")
    if failure.reason == "out_of_memory":
        return Problem(500, "out_of_memory", "there is not enough memory for this image")
    return internal()
