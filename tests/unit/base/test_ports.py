"""Ports of process groups: other users of the machine cannot join, and are detected if they did."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from biphasic import distributed
from biphasic.distributed import private_connections
from biphasic.errors import ConfigError, LostRankError
from other_user import as_other_user, can_connect, needs_root

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a packet filter of Linux")


@pytest.fixture
def environment(monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))


def listening(address: str = "127.0.0.1") -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.create_server((address, 0), family=family)
    server.settimeout(5)
    return server


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_peers_stay_connected_and_nobody_else_can_connect(environment, address):
    with private_connections():
        server = listening(address)
        peer = socket.create_connection(server.getsockname()[:2])
        accepted, _ = server.accept()
    peer.sendall(b"a gradient")
    assert accepted.recv(10) == b"a gradient"
    assert not can_connect(server.getsockname()[:2])
    for each in (server, peer, accepted):
        each.close()


def test_sockets_made_before_are_left_alone(environment):
    with listening() as server:
        with private_connections():
            pass
        assert can_connect(server.getsockname())


def test_libraries_are_set_to_use_loopback(environment):
    with private_connections():
        assert os.environ["GLOO_SOCKET_IFNAME"] == os.environ["NCCL_SOCKET_IFNAME"] == "lo"


def test_a_kernel_without_packet_filters_is_refused_in_one_line(environment, monkeypatch):
    monkeypatch.setattr(
        distributed, "_ATTACH_FILTER", 9999
    )  # unknown to the kernel, as to gVisor's
    expected = r"^processes: .*\(packet filter: Protocol not available\); set compute.processes"
    with pytest.raises(ConfigError, match=expected), private_connections():
        server = listening()
    server.close()


@needs_root
def test_another_user_who_was_faster_is_refused(environment):
    server = listening()
    expected = rf"^port {server.getsockname()[1]}: a process of another user"
    with (
        as_other_user(lambda: socket.create_connection(server.getsockname()), stays=True),
        pytest.raises(LostRankError, match=expected),
        private_connections(),
    ):
        accepted, _ = server.accept()
    for each in (server, accepted):
        each.close()


def test_a_peer_that_has_gone_is_refused(environment):
    server = listening()
    with (
        pytest.raises(LostRankError, match="or one that has ended"),
        private_connections(),
        socket.create_connection(server.getsockname()),
    ):
        accepted, _ = server.accept()
    for each in (server, accepted):
        each.close()
