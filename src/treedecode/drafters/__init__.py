"""Drafters that need no model, and the seam for your own: see ``base``."""

from __future__ import annotations

from treedecode.drafters.base import DraftContext, Drafter, VerifiedRows

__all__ = ["DraftContext", "Drafter", "VerifiedRows"]
