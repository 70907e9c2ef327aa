"""A worker with kazoo's lock. It reads one job per line of standard input, and prints one answer per job. The
worker in Rust (`src/worker`) describes the jobs."""

import os
import sys
import threading
import time

from kazoo.client import KazooClient

SESSION_TIMEOUT = 30


def connect(address):
    client = KazooClient(address, timeout=SESSION_TIMEOUT)
    client.start(timeout=SESSION_TIMEOUT)
    return client


def close(client):
    client.stop()
    client.close()


def prepare(address, paths):
    client = connect(address)
    for path in paths:
        client.ensure_path(path)
    close(client)


def solo(fields):
    prepare(fields["connect"], [fields["path"]])
    client = connect(fields["connect"])
    lock = client.Lock(fields["path"])
    for _ in range(int(fields["warm"])):
        lock.acquire()
        lock.release()
    samples = []
    cpu, begun = time.process_time_ns(), time.perf_counter_ns()
    for _ in range(int(fields["count"])):
        before = time.perf_counter_ns()
        lock.acquire()
        lock.release()
        samples.append(time.perf_counter_ns() - before)
    answer = taken(time.perf_counter_ns() - begun, time.process_time_ns() - cpu, 0, samples)
    close(client)
    return answer


def visit(fields):
    prepare(fields["connect"], [fields["path"]])
    client = connect(fields["connect"])
    lock = client.Lock(fields["path"])
    samples = []
    cpu, begun = time.process_time_ns(), time.perf_counter_ns()
    while not os.path.exists(fields["stop"]):
        before = time.perf_counter_ns()
        lock.acquire()
        samples.append(time.perf_counter_ns() - before)
        lock.release()
    answer = taken(time.perf_counter_ns() - begun, time.process_time_ns() - cpu, 0, samples)
    close(client)
    return answer


class HoldLog:
    """The log of all entries and exits."""

    def __init__(self):
        self.steps = []

    def enter(self):
        self.steps.append((True, time.perf_counter_ns()))

    def leave(self):
        self.steps.append((False, time.perf_counter_ns()))

    def hand_overs(self):
        samples = []
        for (was_in, before), (is_in, after) in zip(self.steps, self.steps[1:]):
            if was_in == is_in:
                raise RuntimeError("two tasks held the lock at once")
            if is_in:
                samples.append(after - before)
        return samples


def crowd(fields):
    """Many tasks that want the same lock. All queue behind a holder, the gate, which then releases."""
    address, tasks, locks = fields["connect"], int(fields["tasks"]), int(fields["locks"])
    turns, hold = int(fields["turns"]), int(fields["hold_us"]) / 1e6
    paths = ["%s-%d" % (fields["path"], at) for at in range(locks)]
    prepare(address, paths)
    clients = [connect(address) for _ in range(int(fields["sessions"]))]
    logs = [HoldLog() for _ in paths]
    gates = [clients[0].Lock(path) for path in paths]
    for gate in gates:
        gate.acquire()
    failures = []

    def member(lock, log):
        try:
            for _ in range(turns):
                lock.acquire()
                log.enter()
                if hold:
                    time.sleep(hold)
                log.leave()
                lock.release()
        except BaseException as failure:
            failures.append(failure)

    cpu, begun = time.process_time_ns(), time.perf_counter_ns()
    threads = []
    threading.stack_size(256 << 10)
    for task in range(tasks):
        at = task % locks
        lock = clients[task // locks % len(clients)].Lock(paths[at])
        threads.append(threading.Thread(target=member, args=(lock, logs[at]), daemon=True))
        threads[-1].start()
    observer = connect(address)
    for path in paths:
        while observer.exists(path).numChildren < tasks // locks + 1:
            if failures:
                raise failures[0]
            time.sleep(0.02)
    close(observer)
    joined, opened = time.perf_counter_ns() - begun, time.perf_counter_ns()
    for gate, log in zip(gates, logs):
        log.leave()
        gate.release()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.1)
            if failures:
                raise failures[0]
    elapsed = time.perf_counter_ns() - opened
    samples = [sample for log in logs for sample in log.hand_overs()]
    answer = taken(elapsed, time.process_time_ns() - cpu, joined, samples)
    for client in clients:
        close(client)
    return answer


def taken(elapsed, cpu, joined, samples):
    text = ",".join(map(str, samples))
    return "ok elapsed_ns=%d cpu_ns=%d joined_ns=%d turns=%d samples=%s" % (elapsed, cpu, joined, len(samples), text)


def main():
    for line in sys.stdin:
        work, *words = line.split()
        fields = dict(word.split("=", 1) for word in words)
        try:
            answer = {"solo": solo, "visit": visit, "crowd": crowd}[work](fields)
        except BaseException as failure:
            answer = "failed %s: %s" % (type(failure).__name__, str(failure).replace("\n", " "))
        print(answer, flush=True)


main()
