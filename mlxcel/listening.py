"""The address that the daemon takes, and words for when it can't."""

import errno
import socket

_WRONG_HOST = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


def take(host: str, port: int) -> socket.socket:
    """Return a bound TCP socket; port 0 takes a free one. Raises OSError."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


def host_is_wrong(fault: OSError) -> bool:
    """Tell whether another port would not help: the name is unknown, or the address isn't this machine's."""
    return isinstance(fault, socket.gaierror) or fault.errno in _WRONG_HOST


def advice(fault: OSError) -> str:
    """Return which flag to change."""
    return f"Choose another {'--host' if host_is_wrong(fault) else '--port'}"
