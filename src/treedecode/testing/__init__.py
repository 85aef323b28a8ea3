"""Oracles, Hypothesis strategies and a toy model for tests; nothing else imports this package."""
