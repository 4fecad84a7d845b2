"""Sizes of the kernels' tiles: a fixed table, because what suits a GPU best cannot be tried out without one."""

from dataclasses import dataclass

LONGEST_SIDE = 64  # of a grid: all its rows are in one tile
MOST_CHANNELS = 4096  # all channels of a token are in one program of the token kernels
SPAN = 32  # tokens that share one partial sum
STRIP = 16  # rows and columns that a tile is walked in: the least that a product on tensor cores takes
_PART_NUMBERS = 16384  # held at a time by a token kernel: 64 for each of 256 threads

# Precision of products: three TF32 products for one, about as exact as float32. Plain TF32 is not: an error of 0.14 on ViT-S*.
PRECISION = "tf32x3"


@dataclass(frozen=True)
class Tile:
    """Channels of a tile and warps of its kernels, for one padded number of rows."""

    forward_block: int
    backward_block: int
    source_warps: int
    forward_warps: int = 8
    target_warps: int = 8


# By padded rows. Chosen so that nothing spills to memory on sm_80 and sm_90; tests/norms/gpu compiles every entry.
TILES = {
    16: Tile(16, 8, source_warps=8),
    32: Tile(8, 4, source_warps=4),
    64: Tile(4, 2, source_warps=8),
}
TOKEN_WARPS, MASS_WARPS = 8, 8


def padded(n: int) -> int:
    """The sides that products take: a power of two, at least 16."""
    return max(16, power_of_two(n))


def power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def blocks(tokens: int) -> int:
    """Partial sums of a sample."""
    return -(-tokens // SPAN)


@dataclass(frozen=True)
class Plan:
    """Everything about the launches of one call that follows from shapes."""

    rows: int
    cols: int
    channels: int
    heads: int

    @property
    def tokens(self) -> int:
        return self.rows * self.cols

    @property
    def axis(self) -> int:
        """Padded side of the stored factors of P."""
        return padded(max(self.rows, self.cols))

    @property
    def groups(self) -> int:
        return -(-self.cols // STRIP)

    @property
    def several_strips(self) -> bool:
        """Whether the backward pass takes two kernels."""
        return max(self.rows, self.cols) > STRIP

    @property
    def part(self) -> int:
        """Tokens that a token kernel holds at a time."""
        return max(1, min(SPAN, _PART_NUMBERS // power_of_two(self.channels)))

    @property
    def tile(self) -> Tile:
        return TILES[padded(self.rows)]

    def block(self, most: int) -> int:
        """Channels of a tile: not many more than a head has."""
        return max(2, min(most, power_of_two(self.channels // self.heads)))

    def tiles(self, block: int) -> int:
        """Tiles of all channels."""
        return self.heads * -(-(self.channels // self.heads) // block)

    def numbers(self, block: int) -> int:
        """Numbers in a tile, padding included."""
        return STRIP * padded(self.rows) * block

    def channel_sizes(self) -> dict[str, int]:
        return {"C": self.channels, "CP": power_of_two(self.channels)}

    def token_sizes(self) -> dict[str, int]:
        return {**self.channel_sizes(), "PART": self.part}

    def tile_sizes(self, block: int) -> dict[str, int | str]:
        head = self.channels // self.heads
        sizes = {"C": self.channels, "D": head, "N": self.axis, "RP": padded(self.rows), "STRIP": STRIP, "BLOCK": block}
        return {**sizes, "SPAN": SPAN, "PRECISION": PRECISION}

    def mass_sizes(self) -> dict[str, int | str]:
        return {"N": self.axis, "RP": padded(self.rows), "STRIP": STRIP, "PRECISION": PRECISION}
