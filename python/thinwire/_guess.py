"""The engine's errors about words, as a Python program would say them, with a guess at what was meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from contextlib import contextmanager

TYPES = {"usize": "a whole number of at least 0", "u64": "a whole number of at least 0", "f64": "a number", "f32": "a number"}


@contextmanager
def guessing(own: tuple[str, ...] = (), elsewhere: tuple[str, ...] = ()) -> Iterator[None]:
    """Adds a guess to the engine's error about an unknown word. `own` are keywords of the caller's, which the engine does not see;
    `elsewhere` are words of the engine's that the caller says otherwise.

    The engine's words are written down in the engine alone, so they come from its error: it has them in backquotes, behind the
    unknown one. An error that has none stays as it is.
    """
    try:
        yield
    except ValueError as error:
        text = re.sub(r"expected (\w+)$", lambda found: f"expected {TYPES.get(found[1], found[1])}", str(error))
        if "unknown field" not in text and "unknown variant" not in text:
            if text == str(error):
                raise
            raise ValueError(text) from None
        unknown, *accepted = re.findall("`([^`]+)`", text)
        is_keyword = text.startswith(f"{unknown}: unknown field")  # and none of the words in its value
        if is_keyword:
            accepted = sorted({*accepted, *own} - {*elsewhere})
        near = difflib.get_close_matches(unknown, accepted, 1) or [word for word in accepted if unknown in word.split("_")]
        guess = f"; did you mean '{near[0]}'?" if near else ""
        if is_keyword:
            raise ValueError(f"{unknown}: there is no such word{guess or ';'} accepted: {', '.join(accepted)}") from None
        raise ValueError(text + guess) from None
