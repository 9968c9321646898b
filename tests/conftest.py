"""What tests share: the corpora's place, how hard hypothesis tries, journals on disk, doing without privileges."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from raxol_otel.journal.chain import GENESIS, seal
from raxol_otel.journal.codec import encode

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
# The corpora stand beside the repository and are never copied into it.
SHARED: Final = ROOT.parent / "shared"
SHARED_ABSENT: Final = "the reference corpora (../shared, beside the repository) are not here"
NOBODY: Final = 65534

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=300)
settings.register_profile("long", deadline=None, max_examples=3000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def require_shared(*parts: str) -> Path:
    """The path of something in ../shared; the test is skipped where it is absent."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(SHARED_ABSENT)
    return path


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of the shared corpora, or a skip."""
    return require_shared()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test that asks for `oracle_verdict` each verdict of the reference, or one skip."""
    if "oracle_verdict" not in metafunc.fixturenames:
        return
    path = SHARED / "oracle" / "verdicts.json"
    if path.exists():
        verdicts: list[dict[str, Any]] = json.loads(path.read_bytes())
        cases = [pytest.param(verdict, id=str(verdict["case"])) for verdict in verdicts]
    else:
        cases = [pytest.param(None, id="absent", marks=pytest.mark.skip(reason=SHARED_ABSENT))]
    metafunc.parametrize("oracle_verdict", cases)


# Files whose tests fork thousands of children. A fork copies the page tables of all that the process holds by then: at
# the end of a run it takes ten times as long as at its beginning.
FORKING: Final = ("test_writer_crash.py", "test_writer_interrupts.py", "test_writer_endings.py", "test_lock_races.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the tests that fork most come first."""
    items.sort(key=lambda item: item.path.name not in FORKING)


def json_values(*, floats: bool) -> st.SearchStrategy[Any]:
    """JSON values of any shape: all text, what needs escapes in particular, integers of any size that is written."""
    scalars: list[st.SearchStrategy[Any]] = [
        *(st.none(), st.booleans(), st.integers(), st.integers(-(10**1022), 10**1022)),
        *(st.text(), st.text(alphabet='\0\x1f\n"\\/u0dD8\x7f\u2028\ufeff\U0001f600')),
        *([st.floats(allow_nan=False, allow_infinity=False)] if floats else []),
    ]
    keys = st.text(max_size=4)
    return st.recursive(
        st.one_of(scalars), lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4)
    )


def make_journal(
    payloads: Sequence[Any], *, chained: bool = False, per_segment: int = 10**6, first: int = 1
) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """The files of a healthy journal, by name, with a record for each payload; and the records."""
    records: list[dict[str, Any]] = []
    segments: list[bytes] = [b""]
    before = GENESIS
    for number, payload in enumerate(payloads):
        record: dict[str, Any] = {"id": first + number, "payload": payload}
        if chained:
            record = seal(record, before)
            before = record["hash"]
        records.append(record)
        if number and number % per_segment == 0:
            segments.append(b"")
        segments[-1] += encode(record) + b"\n"
    head: dict[str, Any] = {"offset": records[-1]["id"] if records else 0, "segment": len(segments)}
    files = {f"journal/{number:06}.jsonl": data for number, data in enumerate(segments, 1)}
    files["HEAD"] = encode(head | ({"tip_hash": before} if chained else {}))
    files["meta.json"] = encode({"schema_version": "1.2.0"} | ({"chain": True} if chained else {}))
    return files, records


@contextmanager
def on_disk(files: dict[str, bytes]) -> Generator[Path]:
    """A session directory with these files, for a while."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # for `unprivileged`
        session = Path(folder, "session")
        (session / "journal").mkdir(parents=True)
        for name, data in files.items():
            (session / name).write_bytes(data)
        yield session


def photograph(session: Path) -> dict[str, tuple[int, bytes]]:
    """Every file and folder: when it was last changed, and its bytes."""
    paths = [session, *session.rglob("*")]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in paths}


LINE_FATES = ("swap", "drop", "repeat", "join", "comma", "splice")
BYTE_FATES = ("cut", "flip", "insert", "delete", "nul", "zero", "blank", "crlf", "again")


def mutate(data: bytes, kind: str, at: int, value: int) -> tuple[bytes, int]:
    """The bytes after something happened to them, and how many leading bytes are as they were."""
    at %= len(data) + 1
    lines = data.split(b"\n")
    line = data[:at].count(b"\n")
    start = data.rfind(b"\n", 0, at) + 1
    if kind in LINE_FATES:
        here, following = lines[line], lines[line + 1 : line + 2]
        put = {
            "swap": [*following, here],
            "drop": following,
            "repeat": [here, here, *following],
            "join": [here + b"".join(following)],
            "comma": [here + b"," + b"".join(following)],
            "splice": [here[: at - start] + b"".join(following)],
        }[kind]
        return b"\n".join([*lines[:line], *put, *lines[line + 2 :]]), start
    changed = {
        "cut": data[:at],
        "flip": data[:at] + bytes([value]) + data[at + 1 :],
        "insert": data[:at] + bytes([value]) + data[at:],
        "delete": data[:at] + data[at + 1 + value :],
        "nul": data[:at] + b"\0" * (value + 1) + data[at:],
        "zero": data[:at] + b"\0" * len(data[at : at + value]) + data[at + value :],
        "blank": data[:at] + b"\n" * (value % 4) + data[at:],
        "crlf": data[:start] + data[start:].replace(b"\n", b"\r\n"),
        "again": data[:at] + data[start:],
    }[kind]
    return changed, start if kind == "crlf" else at


@contextmanager
def unprivileged(folder: Path) -> Generator[None]:
    """Inside, no permission is waived: root, whom none binds, is another user for a while; a skip where it cannot."""
    if os.geteuid() != 0:
        yield
        return
    try:
        os.seteuid(NOBODY)
    except PermissionError:
        pytest.skip("this is root, whom permissions do not bind, and it may not become another user")
    try:
        if not os.access(folder, os.X_OK, effective_ids=True):
            pytest.skip(f"another user cannot reach {folder}")
        yield
    finally:
        os.seteuid(0)
