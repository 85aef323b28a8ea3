"""Where models come from: the default one, folders, and the Hugging Face Hub."""

from __future__ import annotations

from treedecode.models.errors import ModelNotFoundError
from treedecode.models.progress import Progress, quiet_transformers
from treedecode.models.resolve import DEFAULT_NAME, resolve_model

__all__ = ["DEFAULT_NAME", "ModelNotFoundError", "Progress", "quiet_transformers", "resolve_model"]
