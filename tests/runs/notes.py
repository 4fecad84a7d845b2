"""A progress that keeps what it is told."""

from dynavit.engine.progress import Progress


class Notes(Progress):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)
