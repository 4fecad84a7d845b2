"""Figures: pure functions from plain numbers to something that can be drawn on a page and into files."""
