"""A fleet on a file system that is mounted, away, and mounted again: `python -m tests.fleet_mounts FOLDER`, as one may.

Says what each look found, a line of JSON each.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.fleet_processes import raw_session
from tests.test_fleet import World

__all__ = ["main"]

REFUSED = 99


def mount(*arguments: str) -> None:
    """Mount something, or end as one who may not."""
    if subprocess.run(["mount", *arguments], check=False).returncode:  # noqa: S607 - wherever it is
        sys.exit(REFUSED)


def main() -> None:
    """As the module says."""
    folder = Path(sys.argv[1])
    store, root = folder / "store", folder / "sessions"
    for made in (store, root):
        made.mkdir()
    mount("-t", "tmpfs", "tmpfs", str(store))
    raw_session(store / "a", 3)
    raw_session(store / "team" / "b", 2)
    mount("--bind", str(store), str(root))
    world = World(root, folder / "state.db").begin()

    def look() -> object:
        time.sleep(0.05)
        try:
            world.fleet.look(None)
        except FileNotFoundError as error:
            return error.strerror
        return [world.states(), world.turns()]

    found = [look()]
    subprocess.run(["umount", str(root)], check=True)  # noqa: S607 - as above
    found += [look(), look()]
    world.close()
    # A start without it forgets nothing either.
    world = World(root, folder / "state.db")
    try:
        world.begin()
    except FileNotFoundError as error:
        found.append(error.strerror)
    mount("--bind", str(store), str(root))
    world.begin()
    found.append(look())
    # One that is emptied is there.
    for session in (store / "a", store / "team"):
        shutil.rmtree(session)
    found.append(look())
    sys.stdout.write(json.dumps(found))
    world.close()


if __name__ == "__main__":
    main()
