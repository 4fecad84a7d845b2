"""The end of a training that its own task has asked for."""


class EndedError(ValueError):
    """A task ended its training before the last step; a checkpoint was written."""
