"""A run goes on only as it began: with the same options, on the same data, with the same files of the user's own.

Every checkpoint carries what it depends on. The files of the run, which somebody may have lost or edited, are compared with
that; checkpoints from before it was stored have only those files to go by.
"""

import hashlib
import json
from typing import Any

from .config import TrainConfig, from_plain, stored_config, to_plain, upgraded
from .directory import RunDirectory
from .model_files import ModelCard

# Options that may differ when a run goes on: they say where and how fast, not what.
FREE_ON_RESUME = {"data_dir", "loading.workers", "loading.download", "engine.threads", "engine.device", "engine.tensorboard"}
FREE_ON_RESUME |= {"engine.compile", "engine.parallel", "engine.check_finite", "init_from", "init_partial"}


def dependence(config: TrainConfig, card: ModelCard) -> dict[str, Any]:
    """The options, the data and the user's own files that a checkpoint depends on, fit for JSON."""
    facts = {"options": to_plain(config), **_of_card(card)}
    return json.loads(json.dumps(facts, default=str))  # tuples are lists in a file


def check_same_run(run: RunDirectory, config: TrainConfig, card: ModelCard) -> None:
    """ValueError names what is different now. Without a checkpoint and without options there is nothing to compare with."""
    if run.card_file.is_file():
        there = ModelCard.read(run.path)
        if there.fold is not None:
            raise ValueError(f"{run.path} was written by `dynavit fold`, and a folded model cannot be trained on")
        _check_card(run, _of_card(there), card)
    stored = _stored_dependence(run)
    if stored is None:
        if run.config_file.is_file():
            _check_options(run, stored_config(run), config)
        return
    before = from_plain(TrainConfig, upgraded(stored["options"]))
    if run.config_file.is_file():
        changed = _changed(before, stored_config(run))
        state = "is not the one of its checkpoints any more"
    else:
        changed, state = _changed(before, config), "is missing, and these are not the options of its checkpoints"
    if changed:
        raise ValueError(
            f"{run.path} cannot be resumed: its {run.config_file.name} {state}: {_in_words(changed)}; bring it back as it was: "
            f'all options stand in {run.newest_manifest()} under "depends_on"'
        )
    _check_options(run, before, config)
    _check_card(run, stored, card)


def _stored_dependence(run: RunDirectory) -> dict[str, Any] | None:
    file = run.newest_manifest()
    try:
        return json.loads(file.read_text()).get("depends_on") if file is not None else None
    except (ValueError, AttributeError):
        return None  # damaged, which is told when it is read as a whole


def _check_options(run: RunDirectory, before: TrainConfig, now: TrainConfig) -> None:
    if changed := _changed(before, now):
        raise ValueError(
            f"{run.path} cannot be resumed with other options: {_in_words(changed)}; leave them out, or use another --out"
        )


def _changed(before: TrainConfig, now: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """Option to its value before and now."""
    old, new = _flat(to_plain(before)), _flat(to_plain(now))
    names = sorted((old.keys() | new.keys()) - FREE_ON_RESUME)
    return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}


def _in_words(changed: dict[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{name} was {old!r}, is {new!r}" for name, (old, new) in list(changed.items())[:3])


def _of_card(card: ModelCard) -> dict[str, Any]:
    return {
        "data": card.data,
        "preprocess": card.preprocess,
        "classes_sha256": hashlib.sha256(json.dumps(card.classes).encode()).hexdigest(),
        "guests": card.guests,
    }


def _check_card(run: RunDirectory, stored: dict[str, Any], card: ModelCard) -> None:
    now = json.loads(json.dumps(_of_card(card), default=str))
    if any(stored[name] != now[name] for name in ("data", "classes_sha256")):
        had, has = ({name: n for name, n in each["data"].items() if name != "name"} for each in (stored, now))
        raise ValueError(f"{run.path} cannot be resumed: its data had {had} images, now there are {has}, or classes changed")
    for name, value in stored["preprocess"].items():
        if now["preprocess"].get(name) != value:
            raise ValueError(
                f"{run.path} cannot be resumed: its images were prepared with {name} {value}, now it is "
                f"{now['preprocess'].get(name)}; bring back its {run.card_file.name} as it was, or start a new run"
            )
    files = {(guest["kind"], guest["name"]): guest for guest in now["guests"]}
    for guest in stored["guests"]:
        now_there = files.get((guest["kind"], guest["name"]))
        if now_there is not None and now_there["sha256"] != guest["sha256"]:
            raise ValueError(
                f"{run.path} cannot be resumed: {now_there['file']}, which defines its {guest['kind']} {guest['name']!r}, has "
                "changed since; bring the file back as it was, or start a new run"
            )


def _flat(plain: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a.b": value}; an empty dict has no entries."""
    flat: dict[str, Any] = {}
    for name, value in plain.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
