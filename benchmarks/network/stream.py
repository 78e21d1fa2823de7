"""The same as stream.c over plain sockets, for `hosts each`: one_way and ring, in Mbit/s.

Usage: hosts each --hosts 3 --rate 100mbit -- python3 stream.py BYTES
"""

import os
import socket
import sys
import threading
import time

PORT = 5577
BLOCK = bytes(1 << 18)


def main() -> None:
    total = int(sys.argv[1])
    host, hosts = int(os.environ["HOST"]), os.environ["HOSTS"].split(",")
    with socket.create_server((hosts[host], PORT)) as server:
        to_next = connect(hosts[(host + 1) % len(hosts)])
        from_previous, _ = server.accept()
    barrier(host, to_next, from_previous)
    one_way = measure(
        host, total if host == 0 else 0, total if host == 1 else 0, to_next, from_previous
    )
    ring = measure(host, total, total, to_next, from_previous)
    if host == 0:
        print(f"one_way {total * 8 / one_way / 1e6:.1f}\nring {total * 8 / ring / 1e6:.1f}")


def measure(
    host: int, out: int, into: int, to_next: socket.socket, from_previous: socket.socket
) -> float:
    """Seconds until every host has sent `out` bytes and received `into`."""
    start = time.monotonic()
    sender = threading.Thread(target=send, args=(to_next, out))
    sender.start()
    receive(from_previous, into)
    sender.join()
    barrier(host, to_next, from_previous)
    return time.monotonic() - start


def barrier(host: int, to_next: socket.socket, from_previous: socket.socket) -> None:
    """A byte goes round the ring twice: all are here, and all know."""
    for _ in range(2):
        if host == 0:
            send(to_next, 1)
            receive(from_previous, 1)
        else:
            receive(from_previous, 1)
            send(to_next, 1)


def send(sock: socket.socket, count: int) -> None:
    while count > 0:
        sock.sendall(BLOCK[:count])
        count -= len(BLOCK)


def receive(sock: socket.socket, count: int) -> None:
    buffer = bytearray(1 << 20)
    while count > 0:
        got = sock.recv_into(buffer, min(count, len(buffer)))
        if got == 0:
            sys.exit("stream: the connection ended early")
        count -= got


def connect(address: str) -> socket.socket:
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection((address, PORT))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    main()
