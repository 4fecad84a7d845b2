"""The service as a Ray Serve application: each replica is the whole of it, with its own scheduler and limits.

    serve run dynavit.deploy.serve.ray_app:build bundle=runs/dvt-onnx replicas=2

Ray places, restarts and routes. It does not batch: its batches are whole calls and cannot regroup images between exits. The
budget of all replicas is `user_config` of the deployment "dynavit"; a config file (`serve deploy`) that changes nothing else
changes it without a restart, see `ops/ray.yaml`.
"""

import math
from collections.abc import Mapping
from typing import Any

from ...common.extras import require
from .app import create_app
from .budget import parse_budget
from .limits import Limits
from .settings import Settings

ROUTED = 64  # requests beside the queue that a replica may hold: facts, health, streams
FLUSH = 5.0  # seconds after draining


class _App:
    """The app of this replica. It is built there, for a model cannot be sent; what Ray sends is only this name for it."""

    built: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await _App.built(scope, receive, send)


class Replica:
    """Loads, tests and measures the model in the replica's process."""

    def __init__(self, bundle: str, settings: Mapping[str, Any], limits: Mapping[str, Any], trust_pt2: bool) -> None:
        # Ray's proxy stands in front: whom it lets in and under which name is its own business.
        self.settings = Settings(**{"hosts": "*", **settings})
        _App.built = create_app(bundle, self.settings, Limits(**limits), trust_pt2=trust_pt2)

    def reconfigure(self, user_config: Mapping[str, Any]) -> None:
        """The budget of requests that name none; None is that of its settings. Images that were admitted keep theirs."""
        budget = user_config.get("budget")
        _App.built.state.service.set_budget(self.settings.budgets()[0] if budget is None else parse_budget(budget))

    def check_health(self) -> None:
        service = _App.built.state.service
        if service.started and not service.live:
            raise RuntimeError("the model's thread died or hangs")


def scaling(given: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Ray's autoscaling_config. A replica is busy enough with two batches of exit 1 under way: one runs, one waits.

    Which batch is profitable only a replica can measure (`profitable_batch` in /v1/info); until target_ongoing_requests says
    twice that, it is twice the largest batch. Ray's own default of 2 would start replicas while batches are empty.

    >>> scaling({"max_replicas": 4}, Limits(max_batch=8))
    {'target_ongoing_requests': 16, 'max_replicas': 4}
    """
    return {"target_ongoing_requests": 2 * limits.max_batch, **given}


def build(args: Mapping[str, Any]) -> Any:
    """A Ray Serve application.

    Args:
        args: "bundle"; "replicas" (1); "settings", "limits" (fields of `Settings` and `Limits`); "budget" as in a request;
            "autoscaling" (Ray's autoscaling_config, see `scaling`);
            "cpus" (1.0) of a replica; "trust_pt2".
    """
    serve = require("ray.serve", "ray")
    given = dict(args)
    limits = Limits(**given.get("limits", {}))
    budget = given.get("budget") or {}
    parse_budget(budget)  # a wrong one is told here, not by a replica that does not start
    how: dict[str, Any] = {"num_replicas": int(given.get("replicas", 1))}
    if given.get("autoscaling"):
        how = {"autoscaling_config": scaling(given["autoscaling"], limits)}
    deployment = serve.deployment(
        name="dynavit",
        max_ongoing_requests=limits.max_queue + ROUTED,  # Ray's default of 5 would starve the batches
        max_queued_requests=limits.max_queue,
        graceful_shutdown_timeout_s=math.ceil(limits.drain_time + FLUSH),
        health_check_period_s=5,
        ray_actor_options={"num_cpus": float(given.get("cpus", 1.0))},
        user_config={"budget": budget or None},
        **how,
    )
    ingress = serve.ingress(_App())(Replica)
    return deployment(ingress).bind(
        str(given["bundle"]), given.get("settings", {}), given.get("limits", {}), bool(given.get("trust_pt2", False))
    )
