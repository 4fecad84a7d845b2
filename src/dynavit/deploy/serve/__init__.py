"""A service that answers images within a budget. Exits are counted from 1 in all its files, as people do."""
