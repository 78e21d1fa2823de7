"""The words that an optimizer is given, and what is said of those that do not fit."""

import math

import pytest
from models import tiny_gpt

import thinwire


def test_words_of_adamw_that_change_nothing_are_welcome():
    words = {"amsgrad": False, "maximize": False, "capturable": False, "differentiable": False, "foreach": None, "fused": True}
    thinwire.AdamW([{"params": tiny_gpt().parameters(), "name": "all of them", **words}], **words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"lr": "fast"}, "lr = 'fast': accepted: a number"),
        ({"lr": "1e-3"}, "lr = '1e-3': accepted: a number"),
        ({"lr": b"1e-3"}, "lr = b'1e-3': accepted: a number"),
        ({"lr": True}, "lr = True: accepted: a number"),
        ({"lr": None}, "lr = None: accepted: a number"),
        ({"lr": math.inf}, "lr = inf: accepted: a number"),
        ({"betas": 0.9}, "betas = 0.9: accepted: two numbers"),
        ({"betas": (0.9,)}, r"betas = \(0.9,\): accepted: two numbers"),
        ({"weight_decay": "x"}, "weight_decay = 'x': accepted: a number"),
        ({"eps": None}, "eps = None: accepted: a number"),
        ({"deadline": math.inf}, "deadline = inf: accepted: seconds"),
        ({"deadline": True}, "deadline = True: accepted: seconds"),
    ],
)
def test_numbers_that_are_none_are_named(words, message):
    with pytest.raises(ValueError, match=message):
        thinwire.AdamW(tiny_gpt().parameters(), **words)


@pytest.mark.parametrize(
    ("words", "guess"),
    [
        ({"kapa": 16}, "kappa"),
        ({"dead_line": 60.0}, "deadline"),
        ({"group": None}, "process_group"),  # and not groups, which is refused
        ({"topology": "shraded"}, "sharded"),
        ({"learning_rate": {"peek": 1e-3, "warmup": 1}}, "peak"),
    ],
)
def test_a_word_that_is_nearly_one_is_guessed(words, guess):
    with pytest.raises(ValueError, match=f"did you mean '{guess}'\\?"):
        thinwire.ZeroOneAdam(tiny_gpt().parameters(), **words)


@pytest.mark.parametrize("words", [{"colour": 1}, {"learning_rate": {"lr": 1e-3}}, {"topology": "topology"}])
def test_a_word_that_is_like_none_is_not_guessed(words):
    with pytest.raises(ValueError, match="there is no such word|unknown field|unknown variant") as refused:
        thinwire.ZeroOneAdam(tiny_gpt().parameters(), **words)
    assert "did you mean" not in str(refused.value)
