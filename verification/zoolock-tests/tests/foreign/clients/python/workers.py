"""Reads commands and passes them to workers, for the clients of libraries for Python."""

import os
import sys
import traceback


class Workers:
    """The workers by id. The first command for an id creates its worker."""

    def __init__(self, create):
        self.create = create
        self.workers = {}

    def execute(self, line):
        """Passes a line of the standard input to its worker."""
        number, command = line.split(maxsplit=1)
        if number not in self.workers:
            self.workers[number] = self.create(number)
        self.workers[number].commands.put_nowait(command)


def fail():
    """Prints the current exception and ends the process."""
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)
