"""Figures and the report, from files."""
