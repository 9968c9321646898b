"""Whatever happens to a journal's files: a tail says of them what a scan says, and gives the records of a scan."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.tail_follow import settle
from tests.tail_world import GROWTH, HARM, HEADS, World

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 150


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_a_tail_says_what_a_scan_says(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    seed: int,
    chained: bool,  # noqa: FBT001 - pytest's
) -> None:
    """After every step verdict, place, HEAD, sizes and records equal those of a scan; positions are restored at random.

    Nothing is logged: a verdict that is asked for again and again is for whoever asks to tell.
    """
    rng = random.Random(f"{seed} {chained}")  # noqa: S311 - to be repeatable is the point
    world = World(tmp_path, rng, chained=chained)
    done: list[str] = []
    for _ in range(STEPS):
        chance = rng.random()
        if chance < 0.62:
            # A writer does much between two looks. Of a change and a growth behind it only the growth might show.
            events = rng.choices(GROWTH, k=rng.choice((1, 1, 2, 4)))
        elif chance < 0.72:
            events = [rng.choice(HEADS)]
        elif chance < 0.9:
            events = [rng.choice(HARM)]
        else:
            events = ["fresh"]
        if rng.random() < 0.1:
            # From here on the files' times tell of every change.
            settle()
        for event in events:
            done.append(event)
            getattr(world, event)()
        if rng.random() < 0.1:
            # So late that a change within the tick of the look before shows in no time any more.
            settle()
        if rng.random() < 0.1:
            world.follower.look(rng.randrange(1, 2_000), rounds=2)
            done.append("(part)")
        if rng.random() < 0.2:
            world.follower.save()
            done.append("(restart)")
        try:
            world.follower.check()
        except AssertionError as error:
            error.add_note(f"after {done[-20:]}")
            raise
    assert world.follower.looks > STEPS / 2
    assert not caplog.records
