"""The shortest training that still is one: four steps of a model with one block."""

TINY = ("--epochs", "0.2", "--model_options.depth", "1", "--model_options.norm_blocks", "1")
STEPS = 4  # a fifth of the 21 in an epoch: 1,293 of the digits in batches of 64
