"""An answer that is cut for taking too long is no answer, wherever it was cut."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from raxol_otel.exporters.otlp_config import OtlpConfig
from raxol_otel.exporters.otlp_http import HttpTransport

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n"


@pytest.mark.parametrize("begin", [b"HTTP/1.1 2", HEAD, HEAD + b"x-more: "], ids=["status", "headers", "a header"])
def test_headers_that_drip_are_no_delivery(begin: bytes) -> None:
    """What came of them says 200, and the rest of the answer never came: the request is made again."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            client, _ = server.accept()
            with client:
                client.recv(65536)
                client.sendall(begin)
                for _ in range(100):
                    try:
                        client.sendall(b"a")
                    except OSError:
                        return
                    time.sleep(0.05)

        thread = threading.Thread(target=drip)
        thread.start()
        config = OtlpConfig.resolve(endpoint=f"http://127.0.0.1:{server.getsockname()[1]}/v1/traces", timeout=0.5)
        transport = HttpTransport(config)
        assert transport.send(b"", 0.5).kind == "retry"
        transport.close()
        thread.join()
