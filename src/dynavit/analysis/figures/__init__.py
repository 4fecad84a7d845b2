"""Figures of the inside of models, drawn from plain JSON and nothing else."""
