"""Requests and answers as OpenAPI describes them. Answers are written by `answers.py`; a test holds the two together."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Level = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Milliseconds = Annotated[float, Field(gt=0, le=86_400_000)]


class Budget(BaseModel):
    """At most one target, a mean over many images (level, gmacs, accuracy, latency_ms, thresholds), and any limits, which hold
    for this very image (max_exit, max_gmacs, deadline_ms)."""

    model_config = ConfigDict(extra="forbid")
    level: Level | None = None
    gmacs: Positive | None = None
    accuracy: Level | None = None
    latency_ms: Positive | None = None
    thresholds: list[float] | None = None
    max_exit: Annotated[int, Field(ge=1)] | None = None
    max_gmacs: Positive | None = None
    deadline_ms: Milliseconds | None = None
    on_deadline: Literal["best", "fail"] = "best"
    degrade: bool = False


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")
    budget: Budget | None = None
    top: Annotated[int, Field(ge=1, le=10)] = 1
    probabilities: bool = False


class Image(BaseModel):
    model_config = ConfigDict(extra="forbid")
    b64: Annotated[str, Field(description="base64 of a JPEG, PNG or WebP file")]
    id: Annotated[str, Field(max_length=256)] | None = None


class Images(Options):
    images: Annotated[list[Image], Field(min_length=1)]


class Form(BaseModel):
    image: list[Annotated[str, Field(json_schema_extra={"format": "binary"})]]
    options: Options | None = None


class Error(BaseModel):
    error: str
    code: str
    request_id: str
    hint: str | None = None


class Model(BaseModel):
    name: str
    version: str


class Applied(BaseModel):
    thresholds: list[float]
    max_exit: int
    expected_gmacs: float | None
    expected_accuracy: float | None


class BudgetInForce(BaseModel):
    asked: dict[str, Any] | None
    applied: Applied
    source: Literal["request", "server"]
    clipped: bool


class Label(BaseModel):
    label: int
    name: str
    confidence: float


class RanExit(BaseModel):
    exit: int
    label: int
    confidence: float | None
    threshold: float | None
    gmacs: float | None


class Cost(BaseModel):
    gmacs: float | None
    queue_ms: float
    compute_ms: float
    total_ms: float
    batch: list[int]


class Result(Label):
    id: str | None
    status: Literal[200]
    top: list[Label]
    exit: int
    why: Literal["confident", "last", "cap", "deadline", "degraded"]
    exits: list[RanExit]
    cost: Cost
    probabilities: list[float] | None = None


class FailedResult(BaseModel):
    id: str | None
    status: Annotated[int, Field(ge=400, le=599)]
    error: str
    code: str
    hint: str | None = None


class Predicted(BaseModel):
    request_id: str
    model: Model
    budget: BudgetInForce
    results: list[Result | FailedResult]
    failed: int


class SweptExit(Label):
    exit: int
    confidence: float | None  # type: ignore[assignment]
    gmacs: float | None
    compute_ms: float


class SweptLevel(BaseModel):
    level: float
    gmacs: float | None
    accuracy: float | None
    thresholds: list[float]
    exit: int
    label: int
    name: str
    confidence: float | None
    cost_gmacs: float | None


class Swept(BaseModel):
    request_id: str
    model: Model
    exits: list[SweptExit]
    levels: list[SweptLevel]


class Explained(BaseModel):
    request_id: str
    exit: int
    grid: Annotated[list[int], Field(min_length=2, max_length=2)]
    attention: list[list[float]]
    change: list[list[float]] | None


class Point(BaseModel):
    level: float
    gmacs: float | None
    accuracy: float | None
    accuracy_ci: Annotated[list[float], Field(min_length=2, max_length=2)] | None
    thresholds: list[float]
    shares: list[float] | None


class Curve(BaseModel):
    points: list[Point]
    calibrated: bool
    calibration: dict[str, Any] | None
    interpolated: bool
    note: str


class Exit(BaseModel):
    exit: int
    grid: list[int] | None
    gmacs: float | None
    cumulative_gmacs: float | None
    state_bytes: int


class StageCost(BaseModel):
    exit: int
    fixed_ms: float
    per_image_ms: float
    profitable_batch: int
    largest_batch: int


class Info(BaseModel):
    model: Model
    dynavit_version: str
    classes: list[str]
    exits: list[Exit]
    costs: list[StageCost]
    budget: BudgetInForce
    limits: dict[str, Any]
    preprocess: dict[str, Any]
    calibrated: bool
    explain: bool
    samples: int
    notes: list[str]


class Sample(BaseModel):
    name: str
    data_uri: str


class Samples(BaseModel):
    samples: list[Sample]


class LiveExit(BaseModel):
    exit: int
    images: int
    share: float | None
    batch: float | None


class Stats(BaseModel):
    window_seconds: int
    images: int
    images_per_second: float
    refused: int
    mean_gmacs: float | None
    latency_ms: dict[str, float | None]
    exits: list[LiveExit]
    queue: int
    running: int
    connections: int
    draining: bool
    totals: dict[str, float]


# ---- Open Inference Protocol


class InferTensor(BaseModel):
    name: Literal["image", "pixels"]
    shape: list[Annotated[int, Field(ge=0)]]
    datatype: Literal["BYTES", "FP32"]
    parameters: dict[str, Any] | None = None
    data: list[Any] | None = None


class InferWanted(BaseModel):
    name: Literal["label", "name", "confidence", "exit", "gmacs", "probabilities"]


class InferRequest(BaseModel):
    """Budgets stand among the parameters: budget_gmacs, budget_accuracy, budget_level, max_exit, deadline_ms, timeout."""

    id: str | None = None
    parameters: dict[str, Any] | None = None
    inputs: list[InferTensor]
    outputs: list[InferWanted] | None = None


class InferOutput(BaseModel):
    name: str
    datatype: str
    shape: list[int]
    data: list[Any] | None = None
    parameters: dict[str, Any] | None = None


class Inferred(BaseModel):
    model_name: str
    model_version: str
    id: str
    outputs: list[InferOutput]


class ModelReady(BaseModel):
    name: str
    ready: bool
