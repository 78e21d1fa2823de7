"""What may have been meant by a word that the engine does not know."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def guessing(*own: str) -> Iterator[None]:
    """Adds a guess to the engine's error about an unknown word; `own` are keywords of the caller's, which the engine does not see.

    The engine's words are written down in the engine alone, so they come from its error: it has them in backquotes, behind the
    unknown one. An error that has none stays as it is.
    """
    try:
        yield
    except ValueError as error:
        if "unknown field" not in str(error) and "unknown variant" not in str(error):
            raise
        unknown, *accepted = re.findall("`([^`]+)`", str(error))
        if str(error).startswith(f"{unknown}: "):  # a keyword itself, and none of the words in its value
            accepted += own
        near = difflib.get_close_matches(unknown, accepted, 1)
        if not near:
            raise
        raise ValueError(f"{error}; did you mean '{near[0]}'?") from None
