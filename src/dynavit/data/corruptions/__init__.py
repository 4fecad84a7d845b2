"""Images as bad weather, cameras and files make them, computed on batches."""

from .by_name import CORRUPTIONS, GROUPS, SEVERITIES, corrupt

__all__ = ["CORRUPTIONS", "GROUPS", "SEVERITIES", "corrupt"]
