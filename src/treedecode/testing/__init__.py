"""The proof suite: oracles, exact enumeration, planted faults, chi-squared tests, and Hypothesis strategies.

Other projects may use it on their own samplers (docs/exactness.md); within this one only tests and
``treedecode.verify`` import it.

- ``oracle``: masks, positions, walks and commits from the definitions, in plain Python.
- ``reference``: the sampled walks, likewise.
- ``suite``: ``check_exact`` and ``check_frequencies``, which raise if a sampler is not exact.
- ``problems``, ``enumeration``, ``exact``: small pairs of models, all that can happen on them, and a sampler's exact
  output distribution.
- ``mutations``: faulty samplers that a suite must catch; ``planting``, ``faulty_walks``, ``faulty_inputs`` make them.
- ``statistics``: chi-squared tests on larger vocabularies.
- ``samplers``: this package's samplers, under the signature that the suite takes.
- ``strategies``: Hypothesis strategies for trees. ``toy``, ``drafters``: a small model, and drafters that set traps.
"""
