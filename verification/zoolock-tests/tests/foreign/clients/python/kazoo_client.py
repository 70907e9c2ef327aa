"""Executes commands with kazoo's locks: kazoo_client.py CONNECT

The file ../mod.rs describes the commands and the answers.
"""

import os
import queue
import sys
import threading

from kazoo.client import KazooClient
from kazoo.recipe.lock import Lock

import workers

CONNECT = sys.argv[1]
output = threading.Lock()


class NumberedLock(Lock):
    """A lock with the znode <hex>lock-S. Curator orders it by its sequence number S."""

    _NODE_NAME = "lock-"
    _EXCLUDE_NAMES = ["lock-"]


class Worker(threading.Thread):
    """A session with one lock."""

    def __init__(self, number):
        super().__init__(daemon=True)
        self.number = number
        self.commands = queue.Queue()
        self.lock = None
        self.start()

    def run(self):
        try:
            self.client = KazooClient(CONNECT, timeout=10)
            self.client.start(60)
            while self.execute(*self.commands.get().split()):
                pass
        except BaseException:
            workers.fail()

    def execute(self, command, *arguments):
        """Returns whether further commands can follow."""
        if command == "acquire":
            if self.lock is None:
                self.lock = self.lock_of(*arguments)
            assert self.lock.acquire()
            self.answer("acquired")
        elif command == "release":
            self.lock.release()
            self.answer("released")
        elif command == "close":
            self.client.stop()
            self.client.close()
            self.answer("closed")
            return False
        else:
            raise ValueError(command)
        return True

    def lock_of(self, kind, path):
        kind, *arguments = kind.split(":")
        identifier = arguments[0] if arguments else "kazoo"
        if kind == "lock":
            return self.client.Lock(path, identifier)
        if kind == "lock-pattern":
            return self.client.Lock(path, identifier, extra_lock_patterns=["lock-"])
        if kind == "lock-number":
            return NumberedLock(self.client, path, identifier)
        if kind == "read":
            return self.client.ReadLock(path, identifier)
        if kind == "write":
            return self.client.WriteLock(path, identifier)
        if kind == "semaphore":
            return self.client.Semaphore(path, "kazoo", max_leases=int(arguments[0]))
        raise ValueError(kind)

    def answer(self, text):
        with output:
            print(self.number, text, flush=True)


commands = workers.Workers(Worker)
for line in sys.stdin:
    commands.execute(line)
os._exit(0)
