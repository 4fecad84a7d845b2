"""Measurements: time as ratios in one run, memory, arithmetic. Nothing here decides what is good."""
