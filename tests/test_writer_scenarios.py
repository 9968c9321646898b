"""Every scenario of the oracle, played with our writer: as recorded, but for the differences that are named here."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from raxol_otel.signals import SIGNAL_WRITE_FAILED
from tests.conftest import SHARED, SHARED_ABSENT
from tests.exporter_contract import SECONDS_MAX, environment, in_own_mounts
from tests.test_lock import running
from tests.writer_scenarios import NOT_OPEN, SETTINGS, play

if TYPE_CHECKING:
    from tests.writer_scenarios import Step

# Where permissions have to bind: played by another user than root.
AS_NOBODY: Final = {
    *("lock_other_users_process", "open_segment_read_only", "scan_segment_unreadable", "scan_journal_dir_unreadable"),
    *("scan_meta_unreadable_chained", "scan_head_unreadable_chained"),
}


def failed(stage: str, reason: str) -> dict[str, Any]:
    """One `write_failed` signal."""
    return {"event": SIGNAL_WRITE_FAILED, "metadata": {"reason": reason, "stage": stage}}


def head(offset: int, segment: int = 1, cap: int = 8388608) -> str:
    """HEAD's text."""
    return f'{{"offset":{offset},"schema_version":"1.2.0","segment":{segment},"segment_cap":{cap}}}'


@dataclass(frozen=True)
class Difference:
    """`steps`: by their number, what is recorded otherwise here."""

    why: str
    steps: dict[int, dict[str, Any]]


RETRIED_AT_CLOSE: Final = "HEAD is tried again at close, and that it fails is said"
LIVES_ON: Final = "an event that cannot be encoded is refused, and the writer lives on"
AT_CLOSE: Final = {"telemetry": [failed("head", "eisdir")]}
LOCKED: Final = {"head": head(2), "lock": "1", "segment_sizes": {"000001.jsonl": 386}}
REFUSED: Final = ["error", ["unencodable", "<message>"]]
TWO: Final = {"result": {"head": head(2), "lock": ["error", "enoent"], "segment_sizes": {"000001.jsonl": 386}}}
DIFFERENCES: Final = {
    "write_failed_head_is_directory": Difference(RETRIED_AT_CLOSE, {3: AT_CLOSE, 7: AT_CLOSE}),
    "write_failed_head_is_full_directory": Difference(RETRIED_AT_CLOSE, {3: AT_CLOSE, 7: AT_CLOSE}),
    "write_failed_head_chained": Difference(RETRIED_AT_CLOSE, {2: AT_CLOSE}),
    "unencodable_invalid_utf8_unchained": Difference(
        LIVES_ON, {1: {"result": REFUSED}, 2: {"result": ["ok", 2]}, 4: {"result": ["ok", 2]}, 5: TWO}
    ),
    "unencodable_batch_unchained": Difference(
        LIVES_ON, {1: {"result": REFUSED}, 2: {"result": ["ok", 2]}, 4: {"result": ["ok", 2]}, 5: TWO}
    ),
    "lock_other_users_process": Difference(
        "a process that may not be signalled lives",
        {
            1: {"result": ["error", ["journal_locked", "1"]]},
            2: {"result": LOCKED},
            **{number: {"result": NOT_OPEN} for number in (3, 4)},
            5: {"result": LOCKED},
        },
    ),
    "open_session_ids": Difference(
        "WriteFailed stands for every directory that cannot be made",
        {12: {"result": ["error", "write_failed", "meta", "other"]}},
    ),
    "open_segment_read_only": Difference(
        "WriteFailed, with its reason, where the bare file error came through", {0: {"result": ["error", "eacces"]}}
    ),
    "scan_segment_unreadable": Difference(
        "JournalUnreadable, naming the file", {0: {"result": ["raised", "unreadable", "journal/000001.jsonl"]}}
    ),
    "scan_journal_dir_unreadable": Difference(
        "a folder that may not be listed is no healthy empty journal",
        {0: {"result": ["raised", "unreadable", "journal"]}},
    ),
    "scan_meta_unreadable_chained": Difference(
        "a chained journal never passes as an unchained one",
        {number: {"result": ["raised", "unreadable", "meta.json"]} for number in (0, 1)},
    ),
    "write_failed_sync_while_rotating": Difference(
        "HEAD does not name what the failed sync was to cover; the next append makes up for it",
        {3: {"result": {"head": head(1, cap=300), "segment_sizes": {"000001.jsonl": 386, "000002.jsonl": 0}}}},
    ),
    "disk_full_during_append": Difference(
        "what was half written is cut back, so that nothing is glued to it, and a small record finds room; it is said",
        {
            4: {"telemetry": [failed("append", "enospc")]},
            5: {"result": {"head": head(1), "segment_sizes": {"000001.jsonl": 193}}},
            6: {"result": ["ok", 2], "telemetry": [failed("head", "enospc")]},
            7: {"result": {"head": head(1), "segment_sizes": {"000001.jsonl": 386}}},
            8: {"result": ["ok", 2]},
            10: {"result": ["ok", 3]},
            11: {"result": {"head": head(3), "segment_sizes": {"000001.jsonl": 579}}},
            12: {"result": ["ok", 3], "telemetry": []},
            14: {"telemetry": []},
            16: {"result": ["ok", 3], "telemetry": []},
        },
    ),
}


def scenarios() -> dict[str, list[Step]]:
    """The recorded steps of each, without measurements, which our signals do not carry."""
    path = SHARED / "oracle" / "scenarios.json"
    found: list[dict[str, Any]] = json.loads(path.read_bytes()) if path.exists() else []
    for scenario in found:
        for step in scenario["steps"]:
            for event in step.get("telemetry", []):
                event.pop("measurements")
    return {scenario["scenario"]: scenario["steps"] for scenario in found}


SCENARIOS: Final = scenarios()
CASES: Final = [pytest.param(name, id=name) for name in SCENARIOS] or [
    pytest.param("", id="absent", marks=pytest.mark.skip(reason=SHARED_ABSENT))
]


def in_a_child(name: str, steps: list[Step]) -> list[Step]:
    """Play it as another user, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder, "base")
        base.mkdir()
        Path(folder).chmod(0o755)
        done = subprocess.run(
            [sys.executable, "-m", "tests.writer_scenarios", name, str(base), "--as-nobody"],
            input=json.dumps(steps),
            env=environment(measured=False),
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        for path in Path(folder).rglob("*"):
            path.chmod(0o755)
    if "Operation not permitted" in done.stderr:
        pytest.skip("this is root, whom permissions do not bind, and it may not become another user")
    assert done.returncode == 0, done.stderr
    return cast("list[Step]", json.loads(done.stdout))


def on_a_small_disk(name: str, steps: list[Step], folder: Path) -> list[Step]:
    """Play it on a file system of 64 KB."""
    disk, given = folder / "disk", folder / "steps.json"
    disk.mkdir()
    given.write_text(json.dumps(steps), encoding="utf-8")
    script = 'mount -t tmpfs -o size=64k none "$1" || exit 99; exec "$2" -m tests.writer_scenarios "$3" "$1" <"$4"'
    done = in_own_mounts(script, disk, sys.executable, name, given)
    assert done.returncode == 0, done.stderr
    return cast("list[Step]", json.loads(done.stdout))


def told_in_our_words(step: Step) -> Step:
    """The recording of a lock's holder is what stands in the lock file; ours is the pid that it means."""
    match step.get("result"):
        case ["error", ["journal_locked", str(text)]] if "<live foreign pid>" in text:
            return {**step, "result": ["error", ["journal_locked", "<live foreign pid>"]]}
        case _:
            return step


@pytest.mark.parametrize("name", CASES)
def test_a_scenario_goes_as_recorded(name: str, tmp_path: Path) -> None:
    """Step by step: result, signals, HEAD, lock and segments."""
    recorded = SCENARIOS[name]
    expected = [told_in_our_words(step) for step in copy.deepcopy(recorded)]
    if name in DIFFERENCES:
        for number, change in DIFFERENCES[name].steps.items():
            expected[number] |= change
    if name in AS_NOBODY:
        played = in_a_child(name, recorded)
    elif name == "disk_full_during_append":
        played = on_a_small_disk(name, recorded, tmp_path)
    else:
        with running() as pid:
            played = play(name, recorded, tmp_path, foreign_pid=pid)
            text = json.dumps(played).replace(
                f'["journal_locked", "{pid}"]', '["journal_locked", "<live foreign pid>"]'
            )
            played = json.loads(text)
    for step, told in zip(played, expected, strict=True):
        if step["do"] == "look":
            step["result"] = {key: step["result"][key] for key in told["result"]}
    assert played == expected


def test_every_difference_is_one() -> None:
    """Each step that is named here was recorded otherwise, in a scenario that there is."""
    if not SCENARIOS:
        pytest.skip(SHARED_ABSENT)
    assert DIFFERENCES.keys() | SETTINGS.keys() | AS_NOBODY <= SCENARIOS.keys()
    for name, difference in DIFFERENCES.items():
        for number, change in difference.steps.items():
            assert not change.items() <= SCENARIOS[name][number].items(), f"{name}, step {number}"
