"""Sections of a page, each made of the blocks in `report.blocks`."""
