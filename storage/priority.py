"""Lowering the priority of one thread, so that background work yields to decoding."""

import ctypes
import os
import sys
import threading

_NICE = 15
_ON_LINUX: bool = sys.platform.startswith("linux")
_ON_MACOS: bool = sys.platform == "darwin"
# <sys/qos.h> on macOS
_QOS_CLASS_UTILITY = 0x11
_QOS_CLASS_BACKGROUND = 0x09


def yield_to_foreground() -> str:
    """Lower the calling thread's priority for good; returns what could not be done ("" when all was).

    Linux: nice 15 for this thread alone (setpriority takes a thread id there). Raising it again would need a privilege,
    so it is set once: with nothing else to run a nice thread still gets the whole core.
    macOS: the "utility" quality of service; `set_background` goes lower for a while.
    """
    if _ON_LINUX:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        except OSError as error:
            return f"setpriority: {error.strerror}"
        return ""
    return _set_qos(_QOS_CLASS_UTILITY) if _ON_MACOS else ""


def set_background(background: bool) -> str:
    """On macOS move the calling thread between background and utility class; elsewhere nothing is needed."""
    return _set_qos(_QOS_CLASS_BACKGROUND if background else _QOS_CLASS_UTILITY) if _ON_MACOS else ""


def _set_qos(qos_class: int) -> str:
    code: int = ctypes.CDLL(None).pthread_set_qos_class_self_np(ctypes.c_uint(qos_class), ctypes.c_int(0))
    return "" if code == 0 else f"pthread_set_qos_class_self_np: {os.strerror(code)}"
