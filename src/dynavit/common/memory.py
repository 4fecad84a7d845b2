"""Memory that is free on this machine."""

from pathlib import Path

# A container may use less than the machine has: what it may use, and what it uses.
CONTAINERS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def free_bytes() -> int | None:
    """Bytes that could be allocated now without swapping; None where the system does not say."""
    found = [_available(), *(_left(*files) for files in CONTAINERS)]
    return min((free for free in found if free is not None), default=None)


def _available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


def _left(limit: str, used: str) -> int | None:
    try:
        return max(int(Path(limit).read_text()) - int(Path(used).read_text()), 0)
    except (OSError, ValueError):  # no container, or "max": no limit
        return None
