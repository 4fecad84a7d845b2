"""The training loop and what it needs: configuration, optimiser, schedule, checkpoints, evaluation, run directory."""
