"""Switches segmentation offload of a device on or off, without the ethtool command.

The request is ethtool's own: an ioctl on a socket that was made in the device's namespace.
"""

import ctypes
import fcntl
import os
import socket
import struct
import threading

NAMESPACES = "/var/run/netns"  # where `ip netns` keeps them

_SIOCETHTOOL = 0x8946
_ETHTOOL_STSO = 0x1F
_CLONE_NEWNET = 0x40000000


def set_segmentation(namespace: str, devices: list[str], on: bool) -> None:
    """With `on` false, TCP's large packets are cut to frames before the device counts them."""
    failed: list[OSError] = []

    def work() -> None:
        try:
            with _socket_in(namespace) as sock:
                for device in devices:
                    _set(sock, device, on)
        except OSError as error:
            failed.append(error)

    # setns moves only the thread that calls it, and this one ends here.
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def _socket_in(namespace: str) -> socket.socket:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(os.path.join(NAMESPACES, namespace), os.O_RDONLY)
    try:
        if libc.setns(fd, _CLONE_NEWNET) != 0:
            errno = ctypes.get_errno()
            raise OSError(errno, f"setns: {os.strerror(errno)}")
    finally:
        os.close(fd)
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def _set(sock: socket.socket, device: str, on: bool) -> None:
    value = ctypes.create_string_buffer(struct.pack("=II", _ETHTOOL_STSO, int(on)), 8)
    # struct ifreq: the name, then a pointer to the value; 40 bytes are enough on every machine.
    request = struct.pack("16sP16x", device.encode(), ctypes.addressof(value))
    fcntl.ioctl(sock, _SIOCETHTOOL, request)
