"""The model of a run, or of a bundle, as the service runs it."""

from os import PathLike
from typing import Any, Unpack

from ..deploy.bundle.manifest import is_bundle
from ..deploy.serve.model import ExitFacts, ServedModel, stored_curve
from .subject import Subject, WhichOptions


def open_served(run: str | PathLike[str] | Subject, *, trust_pt2: bool = False, **which: Unpack[WhichOptions]) -> ServedModel:
    """Open a run directory or a bundle to be served, on the CPU unless `device` says otherwise.

    Args:
        trust_pt2: open a .pt2 bundle, which can run any code of the one who made it.
        which: the fields of `Subject` that say which weights on which device.
    """
    subject = Subject.of(run, which)
    if is_bundle(subject.run):
        if not subject.is_usual:
            raise ValueError(f"{subject.run} is a bundle, which holds one set of weights; leave --checkpoint, --weights out")
        return ServedModel.open(subject.run, device=subject.device or "cpu", trust_pt2=trust_pt2)
    return _of_run(subject)


def _of_run(subject: Subject) -> ServedModel:
    from ..common.stored_shapes import check_preprocess
    from ..deploy.serve.torch_backend import TorchBackend
    from ..tasks.classification import Classification
    from ..tasks.table import TASKS
    from .exit_facts import describe_calibration, describe_exits

    model, card, source = subject.load()
    card.require_guests(subject.run, "task")
    if not (card.classes and issubclass(TASKS[card.task], Classification)):
        raise ValueError(f"{subject.run}: the service answers with classes of images, and its task {card.task!r} does not")
    check_preprocess(card.preprocess)
    model = model.to(subject.device or "cpu").requires_grad_(False)
    policy = subject.policy()
    exits = [
        ExitFacts(exit["grid"] and tuple(exit["grid"]), exit["gmacs"], exit["cumulative_gmacs"], exit["state_bytes"])
        for exit in describe_exits(model, card.input_size)
    ]
    if policy is not None:
        policy.check_fits(len(exits))
    plain: dict[str, Any] = {} if policy is None else vars(policy) | {"found_on": policy.found_on and vars(policy.found_on)}
    calibration = describe_calibration(subject)
    curve, notes = stored_curve(calibration, plain, exits, str(subject.run))
    return ServedModel(
        TorchBackend(model),
        name=str(card.model["name"]),
        version=source["sha256"][:12],
        classes=card.classes,
        exits=exits,
        curve=curve,
        preprocess=card.preprocess,
        confidence_kind="max_softmax" if policy is None else policy.confidence_kind,
        calibration=calibration,
        notes=notes,
    )
