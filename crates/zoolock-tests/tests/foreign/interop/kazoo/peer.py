"""Contends for one lock by kazoo's recipes.

peer.py CONNECT KIND LOCK REFEREE SECTIONS CONTENDERS: what it is told and what it says is in peer.rs.
"""

import json
import os
import sys
import threading
import time
import traceback
import uuid

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

INSIDE = 0.001
# Every so many sections holders of permits wait for each other, for no longer than this.
TOGETHER = 10
PATIENCE = 0.3
# How often they look whether all are there.
LOOK = 0.005

CONNECT, KIND, LOCK, REFEREE, SECTIONS, CONTENDERS = sys.argv[1:7]

go = threading.Event()
stopped = threading.Event()


def say(what):
    sys.stdout.write(what + "\n")
    sys.stdout.flush()


def obey():
    for order in sys.stdin:
        if order.strip() == "stop":
            stopped.set()
        go.set()
    os._exit(3)


class Violation(Exception):
    """Somebody was inside who may not have been."""


class Referee:
    """Nodes beside the lock, from which everybody sees who else is inside."""

    def __init__(self, client):
        self.client = client
        self.kind = KIND.split(":")[0]
        self.who = "kazoo's %s of process %d" % (KIND, os.getpid())

    def now(self):
        """The last transaction here."""
        return self.client.exists(REFEREE).pzxid

    def inside(self, began, together):
        """Is inside for a moment, and says since which transaction."""
        if self.kind == "semaphore":
            return self.with_permit(began, together)
        return self.reading() if self.kind == "read" else self.alone()

    def alone(self):
        try:
            entered = self.create("inside")
        except NodeExistsError:
            raise self.violation("somebody else is alone inside: " + self.data("inside"))
        self.expect_none("reader-")
        time.sleep(INSIDE)
        self.delete("inside")
        # The lock is still ours.
        self.expect_none("reader-")
        return entered

    def reading(self):
        node = "reader-%s" % uuid.uuid4()
        entered = self.create(node)
        self.expect_none("inside")
        time.sleep(INSIDE)
        self.expect_none("inside")
        self.delete(node)
        return entered

    def with_permit(self, began, together):
        node = "permit-%s" % uuid.uuid4()
        entered = self.create(node)
        came = time.monotonic()
        while not self.all_are_taken() and together and time.monotonic() - came < PATIENCE:
            time.sleep(LOOK)
        # As long again as it took to come in: whoever is one too many has the time to.
        time.sleep(min(time.monotonic() - began, PATIENCE) if together else INSIDE)
        self.all_are_taken()
        self.delete(node)
        return entered

    def all_are_taken(self):
        """Whether all permits are taken. How many there are is what the referee says, whatever the lock thinks."""
        permits = int(self.client.get(REFEREE)[0])
        taken = len(self.found("permit-"))
        if taken > permits:
            raise self.violation("%d permits of %d are taken" % (taken, permits))
        return taken == permits

    def create(self, node):
        path = "%s/%s" % (REFEREE, node)
        _, stat = self.client.create(path, self.who.encode(), ephemeral=True, include_data=True)
        return stat.czxid

    def delete(self, node):
        self.client.delete("%s/%s" % (REFEREE, node))

    def found(self, prefix):
        return [name for name in self.client.get_children(REFEREE) if name.startswith(prefix)]

    def expect_none(self, prefix):
        for name in self.found(prefix):
            raise self.violation("beside us is %s: %s" % (name, self.data(name)))

    def data(self, node):
        try:
            return self.client.get("%s/%s" % (REFEREE, node))[0].decode()
        except NoNodeError:
            return "gone by now"

    def violation(self, what):
        queue = sorted(self.client.get_children(LOCK))
        return Violation("%s: %s; at the lock are %s" % (self.who, what, queue))


class Contender(threading.Thread):
    """One session, one handle of the lock."""

    def __init__(self, ready):
        super().__init__()
        self.ready = ready
        self.asked, self.entered, self.waits = [], [], []

    def run(self):
        try:
            client = KazooClient(CONNECT, timeout=10)
            client.start(60)
            self.contend(handle(client, KIND, LOCK), Referee(client))
            client.stop()
            client.close()
        except Violation as violation:
            say("violation: %s" % violation)
            os._exit(1)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(2)

    def contend(self, handle, referee):
        # What is slow the first time is over before the others wait for it.
        self.section(handle, referee, False)
        self.asked, self.entered, self.waits = [], [], []
        self.ready.release()
        go.wait()
        done = 0
        # None: until it is told to stop.
        while done < int(SECTIONS) if int(SECTIONS) else not stopped.is_set():
            self.section(handle, referee, done % TOGETHER == 0)
            done += 1

    def section(self, handle, referee, together):
        self.asked.append(referee.now())
        began = time.monotonic()
        assert handle.acquire()
        self.waits.append(time.monotonic() - began)
        self.entered.append(referee.inside(began, together))
        handle.release()


def handle(client, kind, path):
    kind, *numbers = kind.split(":")
    if kind == "lock":
        return client.Lock(path, "somebody")
    if kind == "lock-pattern":
        return client.Lock(path, "somebody", extra_lock_patterns=["lock-"])
    if kind == "read":
        return client.ReadLock(path, "somebody")
    if kind == "write":
        return client.WriteLock(path, "somebody")
    if kind == "semaphore":
        return client.Semaphore(path, "somebody", max_leases=int(numbers[0]))
    raise ValueError(kind)


def hold(kind, directory):
    """Takes every lock below a directory, and keeps it."""

    def one(path):
        try:
            assert handle(client, kind, path).acquire()
            say("in " + path)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(2)

    client = KazooClient(CONNECT, timeout=4)
    client.start(60)
    for name in client.get_children(directory):
        threading.Thread(target=one, args=("%s/%s" % (directory, name),)).start()


def main():
    threading.Thread(target=obey, daemon=SECTIONS != "hold").start()
    if SECTIONS == "hold":
        for kind in KIND.split(","):
            hold(kind, LOCK.replace("*", kind))
        return
    ready = threading.Semaphore(0)
    contenders = [Contender(ready) for _ in range(int(CONTENDERS))]
    for contender in contenders:
        contender.start()
    for _ in contenders:
        ready.acquire()
    say("ready")
    for contender in contenders:
        contender.join()
    waits = sorted(1000 * wait for contender in contenders for wait in contender.waits)
    report = {
        "sections": len(waits),
        "longest_ms": waits[-1] if waits else 0,
        "median_ms": waits[len(waits) // 2] if waits else 0,
        "contenders": [{"asked": each.asked, "entered": each.entered} for each in contenders],
    }
    say(json.dumps(report))
    os._exit(0)


main()
