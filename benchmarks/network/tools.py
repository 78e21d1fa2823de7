"""ip and tc, and whether this machine has them."""

import json
import os
import shutil
import subprocess
import sys


class NetworkError(Exception):
    """The network cannot be made or used; the text is one line for the user."""


def require(*tools: str) -> None:
    """Raises NetworkError unless this is Linux, with root, and with these tools."""
    if sys.platform != "linux":
        raise NetworkError("needs Linux")
    if os.geteuid() != 0:
        raise NetworkError("needs root")
    for tool in tools:
        if not shutil.which(tool):
            raise NetworkError(f"needs {tool}, which is not installed")


def has_netem(namespace: str) -> bool:
    """Whether the kernel can delay packets; tried on the loopback device of a namespace."""
    device = ["dev", "lo", "root"]
    tried = subprocess.run(
        ["tc", "-n", namespace, "qdisc", "add", *device, "netem", "delay", "1ms"],
        capture_output=True,
        check=False,
    )
    if tried.returncode == 0:
        call("tc", "-n", namespace, "qdisc", "del", *device)
    return tried.returncode == 0


def make_namespace(name: str) -> None:
    call("ip", "netns", "add", name)
    # IPv6 talks by itself, and that would be counted.
    call(
        *("ip", "netns", "exec", name, "sh", "-c"),
        "f=/proc/sys/net/ipv6/conf; for c in all default; do"
        " [ ! -e $f/$c ] || echo 1 >$f/$c/disable_ipv6; done",
    )
    ip(name, "link", "set", "dev", "lo", "up")


def tbf_counters(namespace: str) -> dict[str, dict[str, int]]:
    shown = json.loads(output("tc", "-n", namespace, "-j", "-s", "qdisc", "show"))
    return {q["dev"]: q for q in shown if q["kind"] == "tbf"}


def ip(namespace: str, *words: str) -> None:
    call("ip", "-n", namespace, *words)


def tc(namespace: str, device: str, *words: str) -> None:
    call("tc", "-n", namespace, "qdisc", "add", "dev", device, *words)


def call(*argv: str) -> None:
    output(*argv)


def output(*argv: str) -> str:
    # In a session of its own, where the terminal's Ctrl-C does not reach it.
    done = subprocess.run(argv, capture_output=True, text=True, check=False, start_new_session=True)
    if done.returncode != 0:
        said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise NetworkError(f"{' '.join(argv)}: {said}")
    return done.stdout
