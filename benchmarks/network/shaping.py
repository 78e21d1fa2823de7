"""What a link does to the packets on it: its rate, its delay, and how tc is told so."""

import re
from dataclasses import dataclass

RATES = "a number and bit, kbit, mbit or gbit, without a space: 100mbit, 1gbit, 2.5gbit"
DELAYS = "a number and us, ms or s, without a space: 50us, 1ms, 0.5s"

_BITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}

_SLOWEST = 64 * 10**3
_FASTEST = 100 * 10**9
_LONGEST = 10.0

ETHERNET = 14  # bytes of a frame's own header
MINIMAL_FRAME = 60
MTU = 1500  # bytes of the largest IP packet; a jumbo frame has 9000
_SMALLEST_MTU, _LARGEST_MTU = 576, 9216


class Unacceptable(ValueError):
    """A rate, a delay or an MTU that is not one. The text says what is accepted."""


def parse_rate(text: str) -> int:
    """Bits a second."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]+)", text.lower())
    if not found or found[2] not in _BITS:
        raise Unacceptable(f"rate {text!r}: write {RATES}")
    rate = round(float(found[1]) * _BITS[found[2]])
    if not _SLOWEST <= rate <= _FASTEST:
        raise Unacceptable(f"rate {text!r}: from 64kbit to 100gbit")
    return rate


def parse_delay(text: str) -> float:
    """Seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]+)", text.lower())
    if not found or found[2] not in _SECONDS:
        raise Unacceptable(f"delay {text!r}: write {DELAYS}")
    delay = float(found[1]) * _SECONDS[found[2]]
    if delay > _LONGEST:
        raise Unacceptable(f"delay {text!r}: at most 10s")
    return delay


def check_mtu(mtu: int) -> int:
    """The same, if a link can have it."""
    if not _SMALLEST_MTU <= mtu <= _LARGEST_MTU:
        raise Unacceptable(f"MTU {mtu}: from {_SMALLEST_MTU} to {_LARGEST_MTU}")
    return mtu


@dataclass(frozen=True)
class Shape:
    """One link, the same in both directions."""

    rate: int  # bits a second; a frame counts with its Ethernet header
    delay: float = 0.0  # seconds, one way from host to host
    slack: float = 2e-3  # seconds; see `burst`
    mtu: int = MTU

    @property
    def frame(self) -> int:
        """Bytes of the largest frame, with its Ethernet header."""
        return self.mtu + ETHERNET

    @property
    def burst(self) -> int:
        """Bytes that pass at once after a pause: what the link carries in `slack`.

        The timer that sends the next packet may come that late, and the link still keeps its rate.
        At 1gbit on two busy cores, 0.5 ms lost a tenth, 1 ms up to 3 % and 2 ms less than 1 %. At
        least ten frames.
        """
        return max(round(self.rate / 8 * self.slack), 10 * self.frame)

    @property
    def limit(self) -> int:
        """Bytes that may wait at a port of the switch: 20 ms, at least 1 MB. More are dropped."""
        return max(self.rate // 8 // 50, 2**20) + self.burst

    @property
    def host_limit(self) -> int:
        """Bytes that may wait in a host: so many that it is TCP that waits, and nothing drops."""
        return max(self.limit, 16 * 2**20)

    def tbf(self, limit: int) -> list[str]:
        """The rate, in the words of tc."""
        rate, burst = f"{self.rate}bit", str(self.burst)
        return ["tbf", "rate", rate, "burst", burst, "limit", str(limit)]

    def netem(self) -> list[str]:
        """The delay, in the words of tc, with room for all the frames that are on their way."""
        on_the_way = self.rate / 8 * self.delay / MINIMAL_FRAME
        packets = round(on_the_way + self.limit / MINIMAL_FRAME)
        return ["netem", "delay", f"{round(self.delay * 1e6)}us", "limit", str(packets)]


def cuts_to_frames(shape: Shape, hosts: int) -> bool:
    """Whether packets are cut to frames before they cross the links.

    Two busy cores carried about 4gbit that way, so only where all links together carry at most
    half of that. Otherwise TCP's packets of 64 kB cross whole; tc still shapes and counts them as
    the frames they stand for.
    """
    return shape.rate * hosts <= 2 * 10**9
