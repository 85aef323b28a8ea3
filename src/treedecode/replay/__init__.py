"""Replay: what other trees would have done on recorded generations, without running the model."""

from __future__ import annotations
