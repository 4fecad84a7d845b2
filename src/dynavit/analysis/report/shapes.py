"""What the files of a run or comparison hold, as far as a page shows it. They may have more."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from ...common.fits import AtLeastOne, Count, Range, check_fits


class StoredMetric(TypedDict):
    """See `common.metric.Metric`."""

    name: str
    label: str
    better: NotRequired[Literal["larger", "smaller"]]
    percent: NotRequired[bool]
    digits: NotRequired[Count]


class Shown(TypedDict):
    """An image with its class and a prediction."""

    image: str
    target: Any
    prediction: Any
    confidence: float


class Confusion(TypedDict):
    """Pairs of classes that occurred, and how often."""

    true: list[Count]
    predicted: list[Count]
    images: list[AtLeastOne]


class Evaluation(TypedDict, total=False):
    """eval/<name>.json"""

    split: str
    weights: str
    step: Count
    samples: Count
    task: str
    main_metric: str | None
    metrics: list[StoredMetric]
    throughput: dict[str, Any]


class Judged(TypedDict):
    """One kind of features among the judged ones."""

    top1: float
    top5: float


class Probe(TypedDict):
    """eval/probe/<protocol>.json; there is more."""

    protocol: str
    split: str
    features: str
    verdict: str
    images: Count
    train_images: Count
    model: Judged
    random: Judged
    pixels: Judged


class Classified(TypedDict, total=False):
    """What an evaluation of a classifier has besides; other tasks may mean something else by these names."""

    classes: list[Any]
    per_class: list[float | None]
    confusion: Confusion | list[list[int]]  # a whole matrix in older ones
    samples_shown: list[Shown]


class Policy(TypedDict):
    """The policy that was judged, see `models.cascade.policy`."""

    thresholds: list[float | None]
    confidence_kind: Literal["max_softmax", "margin", "entropy"]
    gmacs: list[float]
    milliseconds: list[float]
    batch_size: AtLeastOne
    found_by: str
    found_on: NotRequired[dict[str, Any] | None]


class Point(TypedDict):
    """Thresholds for some budget, and what they gave."""

    thresholds: list[float | None]
    gmacs: float
    accuracy: float
    milliseconds: NotRequired[float]


class Calibration(TypedDict):
    """analysis/calibration.json"""

    data: str
    split: str
    classes: list[Any]
    policy: Policy
    samples: Count
    accuracy: float
    shares: list[float]
    gmacs: float
    milliseconds: float
    anytime: list[float]
    curve: list[Point]
    measured: list[Point]
    gallery: list[list[Shown]]


class StoredSetting(TypedDict):
    """A row of a comparison."""

    name: str
    values: dict[str, Any]
    runs: list[str]


class Cost(TypedDict):
    """What a setting costs; there is more. `epochs`: those that fit into the baseline's time, if settings got equal time."""

    name: str
    step_ratio: NotRequired[Annotated[float, Range(above=0)]]
    epochs: NotRequired[Annotated[float, Range(above=0)]]


class ComparisonFile(TypedDict):
    """comparison.json"""

    varied: list[str]
    settings: list[StoredSetting]
    title: NotRequired[str | None]
    created: NotRequired[str]
    command: NotRequired[str]
    baseline: NotRequired[dict[str, Any] | None]
    equal: NotRequired[Literal["epochs", "time"]]
    seeds: NotRequired[list[int] | None]
    cost: NotRequired[list[Cost] | None]
    machine: NotRequired[dict[str, Any] | None]
    failures: NotRequired[dict[str, str] | None]


class StoredFigure(TypedDict):
    """A figure of an analysis."""

    svg: str


class StoredSection(TypedDict):
    """A kind of figures of an analysis."""

    kind: str
    figures: list[StoredFigure]


class Index(TypedDict, total=False):
    """analysis/index.json"""

    sections: list[StoredSection] | None


def check_classified(found: dict[str, Any]) -> None:
    """ValueError unless this is an evaluation of a classifier, and its confusion is of its classes."""
    check_fits(Classified, found)
    confusion, classes = found.get("confusion") or [], len(found.get("classes") or [])
    if isinstance(confusion, dict):
        if not len(confusion["true"]) == len(confusion["predicted"]) == len(confusion["images"]):
            raise ValueError("confusion: its lists are not of the same length")
        largest = max([*confusion["true"], *confusion["predicted"]], default=-1)
    else:
        largest = max([len(confusion), *map(len, confusion)], default=0) - 1
    if classes and largest >= classes:
        raise ValueError(f"confusion: there is no class {largest} among {classes}, counted from 0")


def check_calibration(found: dict[str, Any]) -> None:
    """ValueError unless it has one number for each exit wherever exits are counted."""
    policy = found["policy"]
    lists = {f"policy.{name}": policy[name] for name in ("thresholds", "gmacs", "milliseconds")}
    lists |= {name: found[name] for name in ("shares", "anytime", "gallery")}
    exits = len(policy["thresholds"])
    for name, values in lists.items():
        if len(values) != exits:
            raise ValueError(f"{name} has {len(values)} entries for {exits} exits")
    for point in found["measured"]:
        check_fits(float, point.get("milliseconds"), "measured.milliseconds")
    if policy.get("found_on") is not None:
        check_fits(dict[str, str | int], policy["found_on"], "policy.found_on")
        if missing := {"data", "split", "samples"} - policy["found_on"].keys():
            raise ValueError(f"policy.found_on.{min(missing)} is missing")
