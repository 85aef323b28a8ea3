"""The proof suite: oracles, exact enumeration, planted faults, chi-squared tests, and Hypothesis strategies.

Other projects may use it on their own samplers (docs/exactness.md); within this one only tests import it.

- ``oracle``: masks, positions, walks and commits from the definitions, in plain Python.
- ``reference``: the sampled walks, likewise.
- ``problems``, ``exact``: small pairs of models, and exact output distributions of a sampler on them.
- ``mutations``: faulty samplers that a suite must catch.
- ``statistics``: chi-squared tests on larger vocabularies.
- ``samplers``: this package's samplers, under the signature that the suite takes.
- ``strategies``: Hypothesis strategies for trees. ``toy``, ``drafters``: a small model, and drafters that set traps.
"""
