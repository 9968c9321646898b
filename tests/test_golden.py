"""The frozen corpora in golden/: they stay as they are, today's writer still writes them, today's reader reads them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel.contract import evidence_status
from raxol_otel.journal import iter_records, scan, verify
from tests.conftest import ROOT
from tests.freeze_golden import CORPORA, freeze, write_corpus

if TYPE_CHECKING:
    from pathlib import Path

GOLDEN: Final = ROOT / "golden"
# Written once and for ever: what the manifest said when each corpus was frozen.
FROZEN: Final = {
    "v1.0.0/golden-v1/HEAD": "a04d89297d7b03133414744bd7cf06a74ea1d96fdf852423f2d2828292913f37",
    "v1.0.0/golden-v1/journal/000001.jsonl": "7f263cdc49dfcc6a3d7cff48078783094feff635507eced4b7b1dc20777768b4",
    "v1.0.0/golden-v1/journal/000002.jsonl": "318e9c606db3a58bce35c2a04525e11a08a808af0988e265eaaf831f0727bb3e",
    "v1.0.0/golden-v1/journal/000003.jsonl": "bd6703ba3aa336ac211a6145006b77823f95f6be74b34512185c67156ada2143",
    "v1.0.0/golden-v1/journal/000004.jsonl": "c29df3b4c7cc448b96550ce1dce52432cc778a876baaef63969a7e69e9406543",
    "v1.0.0/golden-v1/meta.json": "ec2b3201957770ad5fbe9fa94fa6911e730dd6150c8420459034979237149d5d",
    "v1.1.0/golden-v11/HEAD": "d273a30ec7b7ffe0488453179b06012fc9f5c41f708679b0af2a3f6efd9601f1",
    "v1.1.0/golden-v11/journal/000001.jsonl": "a7d1d7e31d4966f3509cbea646a4dd278dd71aac869f876859e34b317cfdd4d6",
    "v1.1.0/golden-v11/journal/000002.jsonl": "11a66f2999f2ab30453239db7884b820cea19cab5e3a7f2a180ec4c0b9f8324f",
    "v1.1.0/golden-v11/journal/000003.jsonl": "fe896e91295f2b0640e9415e6af8a796ae6296f939842828127f04cc9cc0c33c",
    "v1.1.0/golden-v11/journal/000004.jsonl": "94b98379b1b43d14108abfa5555bb59419e796d1073227b50a7d8b7e5c9c7e27",
    "v1.1.0/golden-v11/journal/000005.jsonl": "d844d3aae8d478a926d1710b0f1f2734bf2202457a3a5da7f4156bd7e8160519",
    "v1.1.0/golden-v11/meta.json": "3bb61377ad5beb4de0b17646b5dd2b731615216ad81ae2ff100f3066244bc98e",
    "v1.2.0/golden-v12/HEAD": "211f53ea4deb462a49d8114014a0213659a45773ce2fa64a45cd03ad855b24d5",
    "v1.2.0/golden-v12/journal/000001.jsonl": "f613f7683a502b45d4f16ffc589e1b487cc87ee1deab46543c37d96c39641faa",
    "v1.2.0/golden-v12/journal/000002.jsonl": "2ab817409a2975b6304dcf955d46577c6fd4994f68315f14c15225056fd107d8",
    "v1.2.0/golden-v12/journal/000003.jsonl": "7536e2b6809b3d417808f35286e9ffdc337e301b498007f0adf9be83647a233f",
    "v1.2.0/golden-v12/journal/000004.jsonl": "c9608166d8cc1f9c943ef73855bdb3b85a43ead2e2edbf91ca589a47bf9e09cb",
    "v1.2.0/golden-v12/journal/000005.jsonl": "85621c0766faab281e4cbac045eb262afa1977fbeed8f7705083db8445e650f1",
    "v1.2.0/golden-v12/journal/000006.jsonl": "5958da3b683838d4cd4c7114a28e6588c3d3f6c1ed88fac7386c55acfd3d10d4",
    "v1.2.0/golden-v12/journal/000007.jsonl": "8bca0ed8de63dce7e171f74ef508bea18d1c6ef571f556960db6a99f225fb0e7",
    "v1.2.0/golden-v12/meta.json": "4c56e5bd8b27f21dec5ce288f42fd398e57bc0d6a18614e2bfe33618072a2061",
}


def files(session: Path) -> dict[str, bytes]:
    """Every file's bytes by its name below the session."""
    return {path.relative_to(session).as_posix(): path.read_bytes() for path in session.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("version", "name"), CORPORA.items())
def test_todays_writer_still_writes_the_corpus(version: str, name: str, tmp_path: Path) -> None:
    """The same events under the same schema version give the same bytes in every file."""
    assert files(write_corpus(tmp_path, version)) == files(GOLDEN / f"v{version}" / name)


@pytest.mark.parametrize(("name", "digest"), FROZEN.items())
def test_a_frozen_file_never_changes(name: str, digest: str) -> None:
    """The manifest names the hash that the file had when it was frozen (that it is right is tested with the tour)."""
    manifest = json.loads((GOLDEN / "MANIFEST.json").read_bytes())
    assert manifest[name]["sha256"] == digest


@pytest.mark.parametrize(("version", "name"), CORPORA.items())
def test_a_corpus_is_healthy_and_says_its_version(version: str, name: str) -> None:
    """Every record carries the schema version, and the journal is whole."""
    found = scan(GOLDEN / f"v{version}" / name)
    assert found.ok
    assert not found.torn
    assert {record["schema_version"] for record in found.records} == {version}


def test_what_each_version_adds() -> None:
    """1.0.0 has neither item ids in results nor evidence, 1.1.0 has both, 1.2.0 is chained and has a checkpoint."""

    def results(version: str) -> list[dict[str, Any]]:
        records = iter_records(GOLDEN / f"v{version}" / CORPORA[version])
        payloads = [record["payload"] for record in records if record.get("payload")]
        return [payload for payload in payloads if payload.get("item_type") == "tool_result" and "result" in payload]

    def finals(version: str) -> list[str]:
        records = iter_records(GOLDEN / f"v{version}" / CORPORA[version])
        payloads = [record["payload"] for record in records if record.get("payload")]
        return [str(evidence_status(payload)) for payload in payloads if payload.get("final") is True]

    assert [["item_id" in result for result in results(version)] for version in CORPORA] == [
        [False] * 6,
        [True] * 6,
        [True] * 6,
    ]
    # Without the marker: accepted where there are refs, else unknown.
    assert finals("1.0.0") == ["accepted", "unknown", "unknown"]
    assert finals("1.1.0") == finals("1.2.0") == ["accepted", "absent", "rejected"]
    assert verify(GOLDEN / "v1.2.0" / "golden-v12") is None
    *_, last = iter_records(GOLDEN / "v1.2.0" / "golden-v12")
    assert (last["kind"], last["tip_offset"]) == ("checkpoint", last["id"] - 1)


def test_a_frozen_corpus_is_never_touched(tmp_path: Path) -> None:
    """Freezing a version again is refused, by the command too, and changes nothing."""
    freeze(tmp_path, "1.1.0")
    before = files(tmp_path)
    with pytest.raises(FileExistsError, match="frozen"):
        freeze(tmp_path, "1.1.0")
    again = [sys.executable, "-m", "tests.freeze_golden", str(tmp_path), "1.1.0"]
    refused = subprocess.run(again, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stderr.startswith("Error: ")) == (2, True)
    assert files(tmp_path) == before
