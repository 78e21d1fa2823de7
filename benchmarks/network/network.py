"""Hosts in network namespaces behind a switch, with links of a given rate.

    with Network(hosts=4, rate="1gbit") as net:
        result = net.mpirun(["./program", "argument"])
        print(result.seconds, result.links[0].sent_bytes)

Host 0 is called h0 and has the address 10.77.0.1, host 1 is h1 with 10.77.0.2, and so on. The
switch is a bridge in a namespace of its own. mpirun runs there, and reaches the hosts over a second
bridge that is neither shaped nor counted.

All that is made carries the prefix. Who uses a network holds a lock on its folder, so that `clean`
knows what is left over. `leave_on_signals` makes SIGTERM and SIGHUP clean up as Ctrl-C does.
"""

import atexit
import contextlib
import dataclasses
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import offload
import processes
import shaping
import tools
from processes import leave_on_signals
from tools import NetworkError

__all__ = ["Link", "Network", "NetworkError", "Result", "clean", "leave_on_signals"]

STATE = Path("/run/thinwire-network")
MOST_HOSTS = 250

_NAMESPACE = "thinwire-"
_DATA = "10.77.0"
_CONTROL = "10.78.0"
_SWITCH = "switch"

# In a host's namespaces: its name, and the names of the others; then the command.
_ENTER = """
echo "$1" >/proc/sys/kernel/hostname && mount --bind "$2" /etc/hosts || exit 125
shift 2
exec "$@"
"""

# mpirun calls it as `agent HOST WORDS…`, and as rsh does it gives the words to a shell.
_AGENT = """\
host=$1
shift
exec ip netns exec {namespace}"$host" unshare --uts sh -c '{enter}' sh "$host" {folder}/hosts \\
    sh -c "$*"
"""


@dataclasses.dataclass(frozen=True)
class Link:
    """What crossed one host's link. Bytes are of Ethernet frames, without preamble and FCS."""

    host: str
    sent_bytes: int
    received_bytes: int
    sent_packets: int
    received_packets: int
    sent_dropped: int  # before the host's end of the link: never sent
    received_dropped: int  # at the switch, before this host's link: never received

    def __sub__(self, before: "Link") -> "Link":
        fields = [f.name for f in dataclasses.fields(self) if f.name != "host"]
        return Link(self.host, **{f: getattr(self, f) - getattr(before, f) for f in fields})


@dataclasses.dataclass(frozen=True)
class Result:
    """What a command did."""

    exit_code: int
    seconds: float  # from its start to its end; with mpirun's own start, about half a second
    host_seconds: list[float]  # the same for each host; with mpirun all are equal
    links: list[Link]
    output: str | None  # with capture=True


class Network:
    """N hosts and a switch, for as long as the `with` block lasts."""

    def __init__(
        self,
        hosts: int,
        rate: str,
        delay: str | None = None,
        burst: str | None = None,
        prefix: str | None = None,
        frames: bool | None = None,
        mtu: int = shaping.MTU,
    ) -> None:
        """Checks the arguments; the `with` block makes the network.

        rate: of each link, in each direction. delay: one way, host to host; needs netem in the
        kernel. burst: how long a timer may be late, which is also how long a link sends without a
        limit after a pause; 2ms unless told. prefix: the process id unless told. frames: whether
        packets are cut to frames; see `shaping.cuts_to_frames`, which decides unless told. mtu: of the
        links, in bytes; it says how large a frame is.
        """
        if not 1 <= hosts <= MOST_HOSTS:
            raise NetworkError(f"{hosts} hosts: from 1 to {MOST_HOSTS}")
        self.prefix = str(os.getpid()) if prefix is None else prefix
        _check_prefix(self.prefix)
        try:
            shape = shaping.Shape(
                shaping.parse_rate(rate),
                shaping.parse_delay(delay) if delay else 0.0,
                shaping.parse_delay(burst) if burst else shaping.Shape.slack,
                shaping.check_mtu(mtu),
            )
        except shaping.Unacceptable as error:
            raise NetworkError(str(error)) from None
        self.shape = shape
        self.frames = shaping.cuts_to_frames(shape, hosts) if frames is None else frames
        self.hosts = [f"h{i}" for i in range(hosts)]
        self._keep = False
        self._lock: int | None = None

    @classmethod
    def attach(cls, prefix: str) -> "Network":
        """A network that `up` made. The `with` block uses it, and leaves it."""
        _check_prefix(prefix)
        try:
            made = json.loads((STATE / prefix / "network.json").read_text())
        except FileNotFoundError:
            raise NetworkError(f"no network with the prefix {prefix!r}") from None
        net = cls.__new__(cls)
        net.prefix = prefix
        net.shape = shaping.Shape(**made["shape"])
        net.frames = made["frames"]
        net.hosts = made["hosts"]
        net._keep = True
        net._lock = None
        return net

    # ---- making and unmaking ----------------------------------------------------------------

    def __enter__(self) -> "Network":
        tools.require("ip", "tc", "unshare", "mount")
        if self._keep:
            self._take_lock()
        else:
            self.make()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._keep:
            self.leave()
        else:
            self.remove()

    def make(self) -> None:
        """Makes it, whole or not at all."""
        tools.require("ip", "tc", "unshare", "mount")
        if self.prefix in _prefixes():
            raise NetworkError(
                f"a network with the prefix {self.prefix!r} is there already (hosts clean)"
            )
        atexit.register(self._remove_if_held)  # should an exception come just before `with` begins
        try:
            self._take_lock()
            self._make_switch()
            for index in range(len(self.hosts)):
                self._make_host(index)
            self._write_files()
        except BaseException:
            self._remove_if_held()
            raise

    def leave(self) -> None:
        """Lets go of it and lets it stand, for `attach` and `clean`."""
        self._drop_lock()

    def remove(self) -> None:
        """Ends what runs on it and takes it away."""
        with processes.undisturbed():
            _remove(self.prefix)
            self._drop_lock()

    def _remove_if_held(self) -> None:
        if self._lock is not None and not self._keep:
            self.remove()

    def _make_switch(self) -> None:
        switch = self.namespace(_SWITCH)
        tools.make_namespace(switch)
        for bridge in ("data", "control"):
            quiet = ["mcast_snooping", "0"]  # or it joins groups, and says so to the hosts
            tools.ip(switch, "link", "add", "name", bridge, "type", "bridge", *quiet)
            tools.ip(switch, "link", "set", "dev", bridge, "up")
        tools.ip(switch, "addr", "add", f"{_CONTROL}.254/24", "dev", "control")
        if self.shape.delay and not tools.has_netem(switch):
            raise NetworkError("this kernel has no netem, so no delay: leave --delay out")

    def _make_host(self, index: int) -> None:
        name = self.hosts[index]
        here, switch = self.namespace(name), self.namespace(_SWITCH)
        tools.make_namespace(here)
        for bridge, device, subnet, mtu in (
            ("data", "eth0", _DATA, self.shape.mtu),
            ("control", "eth1", _CONTROL, shaping.MTU),
        ):
            port, size = self._port(name, bridge), ["mtu", str(mtu)]
            peer = ["peer", "name", device, *size, "netns", here]
            tools.ip(switch, "link", "add", "name", port, *size, "type", "veth", *peer)
            tools.ip(switch, "link", "set", "dev", port, "master", bridge, "up")
            tools.ip(here, "link", "set", "dev", device, "up")
            tools.ip(here, "addr", "add", f"{subnet}.{index + 1}/24", "dev", device)
        port = self._port(name, "data")
        if self.frames:
            offload.set_segmentation(here, ["eth0"], False)
            offload.set_segmentation(switch, [port], False)
        # What the host sends is limited where it leaves the host, what it receives at the switch.
        tools.tc(here, "eth0", "root", *self.shape.tbf(self.shape.host_limit))
        tbf = self.shape.tbf(self.shape.limit)
        if self.shape.delay:
            tools.tc(switch, port, "root", "handle", "1:", *self.shape.netem())
            tools.tc(switch, port, "parent", "1:1", *tbf)
        else:
            tools.tc(switch, port, "root", *tbf)

    def _write_files(self) -> None:
        names = [f"127.0.0.1 localhost\n{_CONTROL}.254 {_SWITCH}\n"]
        names += [f"{a} {h}\n" for a, h in zip(self.addresses, self.hosts, strict=True)]
        (self.folder / "hosts").write_text("".join(names))
        enter = _ENTER.strip()
        (self.folder / "agent").write_text(
            _AGENT.format(namespace=self.namespace(""), folder=self.folder, enter=enter)
        )
        made = {
            "hosts": self.hosts,
            "shape": dataclasses.asdict(self.shape),
            "frames": self.frames,
        }
        (self.folder / "network.json").write_text(json.dumps(made))

    def _take_lock(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.folder)
        if self._lock is None:
            raise NetworkError(f"the network with the prefix {self.prefix!r} is in use")

    def _drop_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # ---- what it is -------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        return STATE / self.prefix

    @property
    def addresses(self) -> list[str]:
        return [f"{_DATA}.{i + 1}" for i in range(len(self.hosts))]

    def namespace(self, host: str) -> str:
        return f"{_NAMESPACE}{self.prefix}-{host}"

    @staticmethod
    def _port(host: str, bridge: str) -> str:
        return f"{host}-{bridge}"

    def bytes(self) -> list[Link]:
        """What crossed each host's link since it was made.

        tc counts it, at the two shapers of the link. Where packets are cut to frames, a device's
        own counter says the same; where not, that one leaves out most of the headers.
        """
        ports = tools.tbf_counters(self.namespace(_SWITCH))
        links = []
        for name in self.hosts:
            sent = tools.tbf_counters(self.namespace(name))["eth0"]
            received = ports[self._port(name, "data")]
            links.append(
                Link(
                    name,
                    *(sent["bytes"], received["bytes"]),
                    *(sent["packets"], received["packets"]),
                    *(sent["drops"], received["drops"]),
                )
            )
        return links

    def device_bytes(self) -> list[tuple[int, int]]:
        """What each host's device counts itself: bytes sent, bytes received."""
        counts = []
        for name in self.hosts:
            shown = tools.output(
                "ip", "-n", self.namespace(name), "-j", "-s", "link", "show", "eth0"
            )
            stats = json.loads(shown)[0]["stats64"]
            counts.append((stats["tx"]["bytes"], stats["rx"]["bytes"]))
        return counts

    # ---- running ----------------------------------------------------------------------------

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` on a host (or on "switch")."""
        enter = ["unshare", "--uts", "sh", "-c", _ENTER, "sh", host, str(self.folder / "hosts")]
        return ["ip", "netns", "exec", self.namespace(host), *enter, *argv]

    def mpirun(
        self,
        argv: Sequence[str],
        ranks_per_host: int = 1,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        capture: bool = False,
    ) -> Result:
        """Runs an MPI program across all hosts. `options` are more words for mpirun."""
        tools.require("mpirun")
        hostfile = self.folder / "hostfile"
        hostfile.write_text("".join(f"{h} slots={ranks_per_host}\n" for h in self.hosts))
        mca = {
            "plm": "rsh",
            "plm_rsh_agent": f"sh {self.folder}/agent",
            "plm_rsh_no_tree_spawn": "1",
            "oob_tcp_if_include": f"{_CONTROL}.0/24",
            "orte_tmpdir_base": str(self.folder),
            "pml": "ob1",
            "btl": "tcp,vader,self",  # vader: shared memory, between the ranks of one host
            "btl_tcp_if_include": f"{_DATA}.0/24",
            "mpi_yield_when_idle": "1",  # the hosts share the machine's cores
        }
        line = ["mpirun", "--allow-run-as-root", "--hostfile", str(hostfile), "--oversubscribe"]
        line += ["--bind-to", "none", "-np", str(len(self.hosts) * ranks_per_host)]
        line += [word for item in mca.items() for word in ("--mca", *item)]
        line += [*options, *argv]
        return self._run([self.command(_SWITCH, line)], [env or {}], timeout, capture)

    def each(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        capture: bool = False,
    ) -> Result:
        """Runs the command on every host at once, by itself.

        In its environment HOST is the host's number from 0, and HOSTS are the addresses of all,
        with commas between. When one fails, the others are ended.
        """
        lines = [self.command(host, argv) for host in self.hosts]
        all_hosts = {"HOSTS": ",".join(self.addresses), **(env or {})}
        return self._run(
            lines,
            [{"HOST": str(i), **all_hosts} for i in range(len(self.hosts))],
            timeout,
            capture,
        )

    def _run(
        self,
        lines: list[list[str]],
        envs: list[Mapping[str, str]],
        timeout: float | None,
        capture: bool,
    ) -> Result:
        sys.stdout.flush()
        stdin = None if len(lines) == 1 else subprocess.DEVNULL  # many cannot share one
        output = open(self.folder / "output", "w+b") if capture else None  # noqa: SIM115
        running: list[subprocess.Popen[bytes]] = []
        before = self.bytes()
        started = time.monotonic()
        try:
            for line, env in zip(lines, envs, strict=True):
                running.append(
                    subprocess.Popen(line, env={**os.environ, **env}, stdin=stdin, stdout=output)
                )
            code, ended = processes.wait(running, None if timeout is None else started + timeout)
            links = [now - then for now, then in zip(self.bytes(), before, strict=True)]
            text = None
            if output:
                output.seek(0)
                text = output.read().decode(errors="replace")
        finally:
            with processes.undisturbed():
                processes.end(running)
            if output:
                output.close()
        seconds = [end - started for end in ended]
        each_host = seconds if len(seconds) == len(self.hosts) else seconds * len(self.hosts)
        return Result(code, max(seconds), each_host, links, text)


# ---- what is left over ----------------------------------------------------------------------


def clean(prefix: str | None = None) -> tuple[list[str], list[str]]:
    """Removes the networks that nobody uses, or the one with the prefix.

    Returns the prefixes of those removed, and of those in use, which it leaves.
    """
    tools.require("ip")
    if prefix is not None:
        _check_prefix(prefix)
    removed, in_use = [], []
    for found in sorted(_prefixes()):
        if prefix not in (None, found):
            continue
        folder = STATE / found
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock(folder)
        if lock is None:
            in_use.append(found)
            continue
        with processes.undisturbed():
            _remove(found)
            os.close(lock)
        removed.append(found)
    return removed, in_use


def _prefixes() -> set[str]:
    found = {p.name for p in STATE.iterdir()} if STATE.is_dir() else set()
    for namespace in _namespaces():
        matched = re.fullmatch(rf"{_NAMESPACE}(.+)-(?:h\d+|{_SWITCH})", namespace)
        if matched:
            found.add(matched[1])
    return found


def _namespaces(prefix: str | None = None) -> list[str]:
    names = [line.split()[0] for line in tools.output("ip", "netns", "list").splitlines() if line]
    middle = ".+" if prefix is None else re.escape(prefix)
    return [n for n in names if re.fullmatch(rf"{_NAMESPACE}{middle}-(?:h\d+|{_SWITCH})", n)]


def _remove(prefix: str) -> None:
    # Each end of a veth takes the other with it.
    for namespace in _namespaces(prefix):
        processes.kill_all(namespace)
        tools.call("ip", "netns", "delete", namespace)
    shutil.rmtree(STATE / prefix, ignore_errors=True)
    with contextlib.suppress(OSError):
        STATE.rmdir()  # when it was the last


def _check_prefix(prefix: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_]{1,32}", prefix):
        raise NetworkError(f"prefix {prefix!r}: up to 32 letters, digits and _")


def _lock(folder: Path) -> int | None:
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd
