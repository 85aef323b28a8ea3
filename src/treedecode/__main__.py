"""``python -m treedecode``."""

from __future__ import annotations

import sys

from treedecode.cli.app import main

sys.exit(main())
