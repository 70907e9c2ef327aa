"""Takes kazoo's locks as it is told, a line each, in a session of their own each."""

import os
import sys
import threading

sys.path.append("/usr/lib/python3/dist-packages")
from kazoo.client import KazooClient  # noqa: E402

CONNECT = sys.argv[1]
speech = threading.Lock()


def say(what):
    with speech:
        print(what, flush=True)


def take(words):
    client = KazooClient(hosts=CONNECT, timeout=10.0)
    client.start(timeout=60)
    kind, path, identifier = words[:3]
    if kind == "lock":
        lock = client.Lock(path, identifier)
    elif kind == "permit":
        lock = client.Semaphore(path, identifier, max_leases=int(words[3]))
    else:
        raise ValueError(kind)
    lock.acquire()
    say(f"{identifier} holds {path}")


def surely(words):
    try:
        take(words)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)


for order in sys.stdin:
    threading.Thread(target=surely, args=(order.split(),), daemon=True).start()
os._exit(0)
