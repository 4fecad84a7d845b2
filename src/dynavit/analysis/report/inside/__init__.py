"""Sections about the inside of models, made from the plain JSON that `dynavit analyze` writes and nothing else."""
