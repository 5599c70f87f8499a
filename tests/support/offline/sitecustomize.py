"""Loaded by every Python whose path has this folder: the network is away, only this machine's own sockets work."""

import socket

_connect = socket.socket.connect


def connect(self, address):
    if self.family not in (getattr(socket, "AF_UNIX", None),) and address[0] not in ("127.0.0.1", "::1", "localhost"):
        raise OSError(f"B62: something asked for {address[0]}, and the network is away in this test")
    return _connect(self, address)


def resolve(host, *_, **__):
    raise OSError(f"B62: something looked up {host}, and the network is away in this test")


socket.socket.connect = connect
socket.getaddrinfo = resolve
