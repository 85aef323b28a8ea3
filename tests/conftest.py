"""Settings that all tests share."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("treedecode", max_examples=200, deadline=None)
settings.load_profile("treedecode")
