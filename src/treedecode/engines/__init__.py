"""Engines: run a target model over trees. ``hf`` is the one for Hugging Face transformers models."""
