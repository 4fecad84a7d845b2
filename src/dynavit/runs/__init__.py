"""Everything that can be done with a run directory, one verb per file."""
