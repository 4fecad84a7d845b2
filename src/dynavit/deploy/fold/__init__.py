"""Fold norms into the layers around them, verify the result, and store what changed as a plan."""
