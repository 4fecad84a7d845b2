"""A network that is not there is told at once."""

import socket
import threading

import pytest

from dynavit.common.network import hub_address, offline_hub, require_network


@pytest.fixture
def closed_port():
    """Nobody listens there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture
def answered():
    """An address that answers every request with 403."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(timeout=5)


def test_an_address_that_refuses(closed_port):
    with pytest.raises(ValueError, match=r"^it cannot be fetched: no network, or nothing answers at 127.0.0.1 \(.*refused"):
        require_network(f"http://127.0.0.1:{closed_port}/x", "it")


def test_a_proxy_that_refuses(closed_port, monkeypatch):
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{closed_port}")
    with pytest.raises(ValueError, match="nothing answers at example.org"):
        require_network("https://example.org", "it")


def test_any_answer_is_an_answer(answered):
    require_network(answered, "it")


def test_the_hub_is_offline_inside_only():
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    with offline_hub():
        assert constants.HF_HUB_OFFLINE is True
    assert before == constants.HF_HUB_OFFLINE
    assert hub_address().startswith("http")
