"""`python -m raxol_otel` is the command."""

from __future__ import annotations

import sys

from raxol_otel.cli import main

if __name__ == "__main__":
    sys.exit(main())
