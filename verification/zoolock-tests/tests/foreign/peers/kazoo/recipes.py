"""Runs recipes of kazoo in several sessions at the same time: recipes.py CONNECT

A failed assertion ends the program with an error. The program prints the name of each recipe that passed.
"""

import os
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

from kazoo.client import KazooClient

SESSIONS = 4
ROUNDS = 10
PATIENCE = 60


def all_at_once(clients, work):
    def guarded(client):
        try:
            return work(client)
        except BaseException:
            # Ends the process at once, because the other clients would wait for the lock of this client.
            traceback.print_exc()
            os._exit(1)

    with ThreadPoolExecutor(len(clients)) as pool:
        return [done.result(PATIENCE) for done in [pool.submit(guarded, client) for client in clients]]


def expect_shared(locks):
    """Asserts that all locks but the last can be acquired together, and that the last lock then cannot."""
    *these, last = locks
    for lock in these:
        assert lock.acquire(timeout=PATIENCE)
    assert not last.acquire(blocking=False)
    for lock in these:
        lock.release()


def read_and_write_lock(clients):
    # No client waits here, because kazoo 2.8 would deadlock: a reader waits for writers that queued after it, and these
    # writers wait for the reader (kazoo#649).
    one, two, three = clients[:3]
    for _ in range(ROUNDS):
        expect_shared([one.ReadLock("/read-write"), two.ReadLock("/read-write"), three.WriteLock("/read-write")])
        expect_shared([one.WriteLock("/read-write"), two.ReadLock("/read-write")])
        expect_shared([one.WriteLock("/read-write"), two.WriteLock("/read-write")])


def election(clients):
    leading = threading.Lock()
    terms = []

    def lead():
        assert leading.acquire(blocking=False), "two leaders"
        terms.append(1)
        # In this time a second leader could be elected by mistake.
        time.sleep(0.002)
        leading.release()

    def stand(client):
        mine = client.Election("/election", "candidate")
        for _ in range(3):
            mine.run(lead)

    all_at_once(clients, stand)
    assert len(terms) == SESSIONS * 3, terms


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
        assert opened.is_set(), "the barrier was closed"

    all_at_once(clients, wait_or_open)


def double_barrier(clients):
    entering, leaving = [], []
    # kazoo 2.8 has a race: a client may look for the znode `ready` after another client has entered, left and deleted
    # it. It then waits forever. So no client leaves before all have entered.
    entered = threading.Barrier(SESSIONS)

    def enter_and_leave(client):
        mine = client.DoubleBarrier("/double-barrier", SESSIONS)
        entering.append(client)
        mine.enter()
        assert len(entering) == SESSIONS, "entered before all clients were there"
        entered.wait(PATIENCE)
        leaving.append(client)
        mine.leave()
        assert len(leaving) == SESSIONS, "left before all clients had left"

    all_at_once(clients, enter_and_leave)


def queues(clients):
    queue = clients[0].Queue("/queue")
    for number in range(SESSIONS * ROUNDS):
        queue.put(b"%d" % number)

    def get(client):
        mine = client.Queue("/queue")
        return [mine.get() for _ in range(ROUNDS)]

    # If two clients want the same entry, one gets it and the other continues with the next entry.
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
    for recipe in (read_and_write_lock, election, barrier, double_barrier, queues):
        recipe(clients)
        print(recipe.__name__)
    for client in clients:
        client.stop()
        client.close()


main()
