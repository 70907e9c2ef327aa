"""kazoo's way to list who stands at all locks: for each line that it reads it looks once, and says how many it found."""

import sys

from kazoo.client import KazooClient


def main(address, root):
    client = KazooClient(address, timeout=30)
    client.start(timeout=30)
    print("ready", flush=True)
    for _ in sys.stdin:
        locks = client.get_children(root)
        contenders = 0
        for lock in locks:
            contenders += len(client.Lock(f"{root}/{lock}", extra_lock_patterns=["lock-"]).contenders())
        print(len(locks), contenders, flush=True)


main(*sys.argv[1:])
