"""kazoo's recipes, by several sessions at once, looking for two where there may be one: recipes.py HOST:PORT"""

import os
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

from kazoo.client import KazooClient

SESSIONS = 4
ROUNDS = 10
PERMITS = 2
PATIENCE = 60


class Inside:
    """Counts who is inside."""

    def __init__(self, allowed):
        self.allowed = allowed
        self.mutex = threading.Lock()
        self.now = self.visits = 0

    def visit(self):
        with self.mutex:
            self.now += 1
            self.visits += 1
            assert self.now <= self.allowed, "%d inside" % self.now
        # Long enough for others to be let in by mistake.
        time.sleep(0.002)
        with self.mutex:
            self.now -= 1


def all_at_once(clients, work):
    def guarded(client):
        try:
            return work(client)
        except BaseException:
            # The others would wait for what this one has.
            traceback.print_exc()
            os._exit(1)

    with ThreadPoolExecutor(len(clients)) as pool:
        return [done.result(PATIENCE) for done in [pool.submit(guarded, client) for client in clients]]


def expect_shared(locks):
    """All but the last can be had at once."""
    *these, last = locks
    for lock in these:
        assert lock.acquire(timeout=PATIENCE)
    assert not last.acquire(blocking=False)
    for lock in these:
        lock.release()


def lock(clients):
    inside = Inside(1)

    def rounds(client):
        mine = client.Lock("/lock", "somebody")
        for _ in range(ROUNDS):
            assert mine.acquire(timeout=PATIENCE)
            inside.visit()
            mine.release()

    all_at_once(clients, rounds)
    assert inside.visits == SESSIONS * ROUNDS, inside.visits


def read_and_write_lock(clients):
    # Nobody waits: in 2.8 readers wait for writers that came after them, which wait for them (kazoo#649).
    one, two, three = clients[:3]
    for _ in range(ROUNDS):
        expect_shared([one.ReadLock("/read-write"), two.ReadLock("/read-write"), three.WriteLock("/read-write")])
        expect_shared([one.WriteLock("/read-write"), two.ReadLock("/read-write")])
        expect_shared([one.WriteLock("/read-write"), two.WriteLock("/read-write")])


def semaphore(clients):
    inside = Inside(PERMITS)

    def rounds(client):
        for _ in range(ROUNDS):
            with client.Semaphore("/semaphore", max_leases=PERMITS):
                inside.visit()

    all_at_once(clients, rounds)
    assert inside.visits == SESSIONS * ROUNDS, inside.visits
    expect_shared([client.Semaphore("/semaphore", max_leases=PERMITS) for client in clients[: PERMITS + 1]])


def election(clients):
    inside = Inside(1)

    def stand(client):
        mine = client.Election("/election", "somebody")
        for _ in range(3):
            mine.run(inside.visit)

    all_at_once(clients, stand)
    assert inside.visits == SESSIONS * 3, inside.visits


def barrier(clients):
    clients[0].Barrier("/barrier").create()
    opened = threading.Event()
    waiting = threading.Semaphore(0)

    def wait_or_open(client):
        if client is clients[0]:
            for _ in clients[1:]:
                assert waiting.acquire(timeout=PATIENCE)
            opened.set()
            client.Barrier("/barrier").remove()
            return
        waiting.release()
        assert client.Barrier("/barrier").wait(PATIENCE)
        assert opened.is_set(), "through a closed barrier"

    all_at_once(clients, wait_or_open)


def double_barrier(clients):
    entering, leaving = [], []

    def enter_and_leave(client):
        mine = client.DoubleBarrier("/double-barrier", SESSIONS)
        entering.append(client)
        mine.enter()
        assert len(entering) == SESSIONS, "in before all were there"
        leaving.append(client)
        mine.leave()
        assert len(leaving) == SESSIONS, "out before all had left"

    all_at_once(clients, enter_and_leave)


def queues(clients):
    queue = clients[0].Queue("/queue")
    for number in range(SESSIONS * ROUNDS):
        queue.put(b"%d" % number)

    def get(client):
        mine = client.Queue("/queue")
        return [mine.get() for _ in range(ROUNDS)]

    # Two that want the same entry: one gets it, the other goes on to the next.
    got = sorted(int(entry) for entries in all_at_once(clients, get) for entry in entries)
    assert got == list(range(SESSIONS * ROUNDS)), got

    locking = clients[0].LockingQueue("/locking-queue")
    locking.put_all([b"%d" % number for number in range(SESSIONS * ROUNDS)])

    def consume(client):
        mine = client.LockingQueue("/locking-queue")
        entries = []
        for _ in range(ROUNDS):
            entries.append(mine.get(PATIENCE))
            assert mine.consume()
        return entries

    got = sorted(int(entry) for entries in all_at_once(clients, consume) for entry in entries)
    assert got == list(range(SESSIONS * ROUNDS)), got


def main():
    clients = [KazooClient(sys.argv[1], timeout=10) for _ in range(SESSIONS)]
    for client in clients:
        client.start(PATIENCE)
    for recipe in (lock, read_and_write_lock, semaphore, election, barrier, double_barrier, queues):
        recipe(clients)
        print(recipe.__name__)
    for client in clients:
        client.stop()
        client.close()


main()
