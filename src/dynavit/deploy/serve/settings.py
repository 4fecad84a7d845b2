"""Where the service listens, whom it lets in, and what it does where a request says nothing."""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ...common.fits import AtLeastOne, Range
from .budget import Budget, parse_budget_text

TOKEN_VARIABLE, ADMIN_VARIABLE = "DYNAVIT_TOKEN", "DYNAVIT_ADMIN_TOKEN"
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
SHORTEST_TOKEN = 16
ANY = ("0.0.0.0", "::", "*")


@dataclass(frozen=True)
class Settings:
    """Addresses, keys, and defaults for requests.

    Attributes:
        host: address to listen on. Others than this machine's own loopback need a token, or --insecure.
        port: to listen on; 0 takes a free one.
        budget: for requests that name none: level=0.5, gmacs=1.2, accuracy=0.95 or latency_ms=20; also limits: max_exit=2.
        budget_range: that requests are clipped to, such as level=0.2,level=0.8.
        token_file: file of the token that every request must bring, one to a line where clients have their own.
            Without it, the variable DYNAVIT_TOKEN.
        admin_token_file: file of the token that may change the budget. Without it, DYNAVIT_ADMIN_TOKEN.
        insecure: listen beyond loopback without a token.
        hosts: names that requests may use for this server, against DNS rebinding; "*" takes any.
        origins: pages of other servers that may use this one (CORS).
        metrics_open: /metrics without a token.
        batch_wait_ms: milliseconds that an idle model waits for company at exit 1; for accelerators, where a launch is dear.
        hold: times that images waiting for a deeper exit may be passed over while they gather into a full batch. More raises
            images per second where a launch is dear, less shortens the slowest answers of a server that is overloaded.
        degrade_to: level from 0 to 1 that requests with "degrade": true get while the queue is more than half full.
        unready_when_full: a full queue makes the server not ready, for load balancers.
        log_requests: a line for each request, with its id, status and time.
        name: that the model is served under; the directory's if not given.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Range(least=0, most=65535)] = 8000
    budget: str | None = None
    budget_range: str | None = None
    token_file: Path | None = None
    admin_token_file: Path | None = None
    insecure: bool = False
    hosts: str | None = None
    origins: str | None = None
    metrics_open: bool = False
    batch_wait_ms: Annotated[float, Range(least=0, most=60_000)] = 0.0
    hold: AtLeastOne = 8
    degrade_to: Annotated[float, Range(least=0, most=1)] | None = None
    unready_when_full: bool = False
    log_requests: bool = False
    name: str | None = None

    def check(self) -> None:
        """Refuse what would leave the service open by accident, and budgets that are none."""
        keys = self.keys()
        self.budgets()
        if not self.is_loopback and not keys and not self.insecure:
            raise ValueError(
                f"{self.host} can be reached from other machines, so a token is needed: --token-file FILE or {TOKEN_VARIABLE}; "
                "--insecure does without"
            )
        if "*" in self.allowed_origins and keys:
            raise ValueError("--origins '*' together with a token would hand it to every page; name the origins")
        if self.admin_keys() & keys:
            raise ValueError("the admin token is also a token of clients; they have to differ")

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def keys(self) -> frozenset[bytes]:
        """Tokens of clients; empty: anybody may ask."""
        return _keys(self.token_file, TOKEN_VARIABLE)

    def admin_keys(self) -> frozenset[bytes]:
        return _keys(self.admin_token_file, ADMIN_VARIABLE)

    @property
    def allowed_hosts(self) -> tuple[str, ...] | None:
        """Names in the header Host that are answered; None: any. Beyond loopback a token keeps strangers out."""
        given = _words(self.hosts)
        if "*" in given or (not given and self.host in ANY):
            return None
        own = f"[{self.host}]" if ":" in self.host else self.host
        return (*LOOPBACK_NAMES, own, *(name.lower() for name in given))

    @property
    def allowed_origins(self) -> tuple[str, ...]:
        return _words(self.origins)

    def budgets(self) -> tuple[Budget, Budget | None, Budget | None]:
        """The one for requests that name none, and the ends of the range."""
        given = parse_budget_text((self.budget or "").replace(",", " "))
        if self.budget_range is None:
            return given, None, None
        ends = [parse_budget_text(word) for word in _words(self.budget_range)]
        if len(ends) != 2 or not all(end.target for end in ends):
            raise ValueError(f"--budget-range is two targets, such as level=0.2,level=0.8; got {self.budget_range!r}")
        return given, ends[0], ends[1]


def _keys(file: Path | None, variable: str, environment: Mapping[str, str] = os.environ) -> frozenset[bytes]:
    if file is None:
        text, where = environment.get(variable, ""), variable
        if not text:
            return frozenset()
    else:
        text, where = file.read_text(), str(file)
    found = frozenset(line.strip().encode() for line in text.splitlines() if line.strip())
    if not found:
        raise ValueError(f"{where} holds no token")
    if min(map(len, found)) < SHORTEST_TOKEN:
        raise ValueError(f"{where}: a token has at least {SHORTEST_TOKEN} letters; make one with: openssl rand -hex 24")
    return found


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())
