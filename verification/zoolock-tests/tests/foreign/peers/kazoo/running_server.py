"""pytest plugin: kazoo's own tests, unmodified, against a server that is already running.

ZK_EXTERNAL=host:port  the server
ZK_SLOW=host:port      a slow proxy in front of the same server

Only the cluster object of kazoo's test harness is replaced."""

import os
import sys
import types

import pytest

# kazoo's harness imports these packages to make certificates for servers that it starts. Empty modules replace them,
# because the packages would have to be compiled.
for unused in ("jks", "OpenSSL"):
    sys.modules.setdefault(unused, types.ModuleType(unused))

import kazoo.testing.harness as harness  # noqa: E402

# This test writes a megabyte, drops the connection, and expects that the reply is lost. A fast server replies before
# kazoo drops the connection.
WANT_A_SLOW_SERVER = ("test_connection_dropped",)


def needs_own_cluster(what):
    # setUp of kazoo's tests sets these variables, and tearDown does not run after a skip.
    for name in ("ZOOKEEPER_LOCAL_SESSION_RO", "ZOOKEEPER_JAAS_AUTH"):
        os.environ.pop(name, None)
    pytest.skip("needs kazoo's own managed cluster (%s)" % what)


class Server:
    running = True

    def __init__(self, address):
        self.address = address
        self.host, port = address.rsplit(":", 1)
        self.client_port = int(port)

    @property
    def secure_address(self):
        needs_own_cluster("TLS port with its own certificates")

    def run(self):
        pass

    def stop(self):
        needs_own_cluster("stops a server")

    def get_logs(self, num_lines=100):
        return []


class Cluster(list):
    def start(self):
        pass

    terminate = stop = reset = start

    def get_logs(self):
        return []

    def get_ssl_client_configuration(self):
        needs_own_cluster("TLS certificates")


FAST = Cluster([Server(os.environ["ZK_EXTERNAL"])])
SLOW = Cluster([Server(os.environ.get("ZK_SLOW") or os.environ["ZK_EXTERNAL"])])
current = FAST


def get_global_cluster():
    if os.environ.get("ZOOKEEPER_JAAS_AUTH"):
        needs_own_cluster("JAAS " + os.environ["ZOOKEEPER_JAAS_AUTH"])
    if os.environ.get("ZOOKEEPER_LOCAL_SESSION_RO"):
        needs_own_cluster("local sessions / read-only mode, stops 2 of 3 servers")
    return current


harness.get_global_cluster = get_global_cluster


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    global current
    current = SLOW if item.name in WANT_A_SLOW_SERVER else FAST


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if item.name == "test_update_host_list" or item.name.startswith("test_request_queuing"):
            item.add_marker(pytest.mark.skip(reason="needs kazoo's own managed cluster (stops a server)"))
        if "TestReconfig" in item.nodeid:
            item.add_marker(pytest.mark.skip(reason="needs a quorum: reconfig is Unimplemented when standalone"))
