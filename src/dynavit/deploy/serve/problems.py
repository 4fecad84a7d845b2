"""Everything that can go wrong with a request, in one shape: {"error", "code", "request_id", "hint"?}."""

import math
from typing import Any


class Problem(Exception):
    """An answer other than 200.

    Attributes:
        status: of HTTP.
        code: one word for programs; people read the message.
        hint: what would fit.
        retry_after: seconds, for a refusal that may not be one later.
        headers: of the answer.
    """

    def __init__(
        self,
        status: int,
        code: str,
        error: str,
        *,
        hint: str | None = None,
        retry_after: float | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(error)
        self.status, self.code, self.error, self.hint = status, code, error, hint
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after)))

    def body(self, request_id: str) -> dict[str, Any]:
        """The answer as JSON."""
        return {**self.item(), "request_id": request_id}

    def item(self) -> dict[str, Any]:
        """The same inside of an answer about several images."""
        return {"error": self.error, "code": self.code, **({"hint": self.hint} if self.hint else {})}


def not_found() -> Problem:
    return Problem(
        404, "not_found", "there is nothing at this address", hint="the page is at /, the interface at /openapi.json"
    )


def internal() -> Problem:
    """Nothing of the cause goes out; it stands in the log under the request's id."""
    return Problem(500, "internal", "the server could not answer; its log says why under this request_id")


REFUSALS = {
    "queue_full": "too many images are waiting",
    "draining": "the server is stopping",
    "would_miss_deadline": "with so many images waiting not even exit 1 would be done before the deadline",
    "not_ready": "the model is not ready",
    "decode_busy": "too many large images are being decoded",
    "bodies_full": "too many large requests are being received",
    "streams_full": "too many streams are open",
    "explain_full": "too many maps are being computed",
    "client_limit": "too many images of this client are waiting",
}


def refused(reason: str, retry_after: float, *, overload_status: int = 503) -> Problem:
    """429 is the client's doing, 503 the server's state."""
    status = 429 if reason == "client_limit" else overload_status if reason == "queue_full" else 503
    return Problem(status, reason, REFUSALS[reason], retry_after=retry_after)
