"""T16: connections to processes of a run are ended by the kernel when their other end falls silent."""

import os
import socket

import pytest

from official_trainer.distributed import tcp_timeout


@pytest.fixture
def connection():
    """Returns a server's address, and both ends of a connection to it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address) as client, server.accept()[0] as accepted:
            yield address, client, accepted


def limit(end):
    return end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


def test_both_ends_of_a_connection_get_a_limit_once(connection):
    address, client, accepted = connection
    assert tcp_timeout.bound({address}, 7) == 2
    for end in (client, accepted):
        assert limit(end) == 7000
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert tcp_timeout.bound({address}, 9) == 0
    client.sendall(b"it is whole")
    assert accepted.recv(100) == b"it is whole"


def test_nothing_else_is_touched(connection, tmp_path):
    """Connections of others, sockets that are not connected, files, pipes."""
    (host, port), client, accepted = connection
    before = set(os.listdir("/proc/self/fd"))
    with open(tmp_path / "file", "w"), socket.socketpair()[0], socket.socket():
        assert tcp_timeout.bound({(host, port + 1), ("127.0.0.2", port)}, 7) == 0
    assert limit(client) == limit(accepted) == 0
    assert set(os.listdir("/proc/self/fd")) == before


def test_addresses_are_names_or_numbers(connection):
    (_, port), client, _ = connection
    found = tcp_timeout._resolved([f"localhost:{port}", f"[::1]:{port}", "no.such.host.invalid:1"])
    assert {("127.0.0.1", port), ("::1", port)} <= found
    assert tcp_timeout.bound(found, 7) == 2 and limit(client) == 7000


def test_an_ipv4_connection_to_a_server_of_ipv6_counts():
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        address = "127.0.0.1", server.getsockname()[1]
        with socket.create_connection(address), server.accept()[0] as accepted:
            assert tcp_timeout.bound({address}, 7) == 2
            assert limit(accepted) == 7000
