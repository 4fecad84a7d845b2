"""The idx format of MNIST and its relatives: two zero bytes, the type, the number of axes, each length, then the numbers."""

import gzip
import hashlib
import zlib
from pathlib import Path

import numpy as np

_UNSIGNED_BYTE = 8


def read_idx(path: Path, axes: int, sha256: str | None = None) -> np.ndarray:
    """The array of bytes in an idx file with so many axes, plain or compressed (.gz). `sha256` is that of the plain contents:
    the same file can be compressed in many ways."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is damaged, fetch it again: {error}") from error
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and found != sha256:
        raise ValueError(
            f"{path} is damaged: the SHA-256 sum of its contents is {found}, the official one {sha256}; fetch it again"
        )
    start = 4 + 4 * axes
    if content[:4] != bytes((0, 0, _UNSIGNED_BYTE, axes)) or len(content) < start:
        raise ValueError(f"{path} is not an idx file of bytes with {axes} axes: it begins with {content[:4].hex(' ')}")
    shape = tuple(np.frombuffer(content, ">u4", axes, offset=4).tolist())
    if len(content) - start != np.prod(shape):
        raise ValueError(f"{path} is cut off: {len(content) - start} bytes for an array of {' x '.join(map(str, shape))}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
