"""Waiting for processes, ending them, and not being ended before all is cleaned up."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator

import tools


def wait(
    running: list["subprocess.Popen[bytes]"], deadline: float | None
) -> tuple[int, list[float]]:
    """Waits for all, or for the first that fails. The exit code, and when each ended."""
    ended: dict[int, float] = {}
    code = 0
    while len(ended) < len(running) and code == 0:
        for process in running:
            if process.pid in ended or process.poll() is None:
                continue
            ended[process.pid] = time.monotonic()
            if process.returncode != 0 and code == 0:
                code = process.returncode if process.returncode > 0 else 128 - process.returncode
        if deadline is not None and time.monotonic() > deadline and len(ended) < len(running):
            code = code or 124  # as timeout(1)
        time.sleep(0.005)
    now = time.monotonic()
    return code, [ended.get(process.pid, now) for process in running]


def end(running: list["subprocess.Popen[bytes]"]) -> None:
    for process in running:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + 5
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def kill_all(namespace: str) -> None:
    """Ends the processes in a namespace that the network made."""
    for _ in range(100):
        pids = [int(pid) for pid in tools.output("ip", "netns", "pids", namespace).split()]
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Signals that would end this process wait until the block is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {s: signal.signal(s, lambda number, _: held.append(number)) for s in signals}
    try:
        yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
        if held:
            signal.raise_signal(held[0])


def leave_on_signals() -> None:
    """Makes SIGTERM and SIGHUP end this process as an exception does, so that it cleans up."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup does
            signal.signal(number, leave)
