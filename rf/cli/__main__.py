"""``python -m rf.cli``: the command ``rf`` where its script is not on the path."""

from __future__ import annotations

import sys

from rf.cli import main

if __name__ == "__main__":
    sys.exit(main())
