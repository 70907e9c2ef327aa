"""Executes commands with aiozk's locks: aiozk_client.py CONNECT

The file ../mod.rs describes the commands and the answers.
"""

import asyncio
import os
import sys

from aiozk import ZKClient

import workers

servers, _, chroot = sys.argv[1].partition("/")


class Worker:
    """A session with one lock."""

    def __init__(self, number):
        self.number = number
        self.commands = asyncio.Queue()
        self.lock = None
        self.task = asyncio.create_task(self.run())

    async def run(self):
        try:
            self.client = ZKClient(servers, chroot=chroot, session_timeout=10)
            await self.client.start()
            while await self.execute(*(await self.commands.get()).split()):
                pass
        except BaseException:
            workers.fail()

    async def execute(self, command, *arguments):
        """Returns whether further commands can follow."""
        if command == "acquire":
            if self.lock is None:
                self.lock = self.lock_of(*arguments)
            await self.lock.acquire()
            self.answer("acquired")
        elif command == "release":
            await self.lock.release()
            self.answer("released")
        elif command == "close":
            await self.client.close()
            self.answer("closed")
            return False
        else:
            raise ValueError(command)
        return True

    def lock_of(self, kind, path):
        if kind == "lock":
            return self.client.recipes.Lock(path)
        if kind == "lock-number":
            lock = self.client.recipes.Lock(path)
            # The znode is lock-<hex>lock-S, with the sequence number S. Curator orders it by S, and
            # so does kazoo with the extra pattern `lock-`.
            lock.guid += "lock"
            return lock
        if kind == "read":
            return self.client.recipes.SharedLock(path).reader_lock
        if kind == "write":
            return self.client.recipes.SharedLock(path).writer_lock
        raise ValueError(kind)

    def answer(self, text):
        print(self.number, text, flush=True)


async def main():
    loop = asyncio.get_running_loop()
    commands = workers.Workers(Worker)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        commands.execute(line)
    os._exit(0)


asyncio.run(main())
