"""Prior log weights of ``EdgeModel``: where every request starts from.

Fitted by multinomial logistic regression with a ridge, on what followed every context that was reached while decoding
32 tuning prompts of ten kinds (128 tokens each, greedy, Gemma 3 270M, float32) with trees of 6 and 24 drafted nodes and
with a live budget. No tuning prompt is in a test or a benchmark. ``benchmarks/fit_edges.py`` repeats the fit.
"""

from __future__ import annotations

# fmt: off
# By length of the known context: 11 confidence bins, least likely first; then "not in the row".
ROW = (
    0.00,  # no row
    -2.05, -1.33, -1.70, -1.64, -1.50, -0.63, 0.61, 0.38, 0.64, 0.78, 1.05, -2.10,  # last 1
    -2.29, -2.64, -1.33, -2.33, -0.82, -0.32, 0.82, 0.79, 1.03, 0.71, 1.28, -1.25,  # last 2
    -1.99, -2.02, -1.39, -1.23, -0.81, -0.24, 0.50, 1.03, 1.29, 1.47, 1.64, -1.19,  # last 3
)

# By kind of second row: 11 confidence bins, least likely first.
SECOND = (
    0.00,  # not in it
    -0.32, 0.96, -0.34, 0.41, -0.11, 0.24, 1.46, 0.91, 1.23, 0.91, 1.74,  # last token
    0.96, 0.84, 0.10, -0.39, 0.27, 0.82, 2.06, 1.75, 1.28, 1.60, 2.72,  # last two tokens
    -0.75, 0.01, -0.09, -0.52, -0.87, -0.51, 0.59, 1.87, 1.85, 2.73, 1.97,  # one before the last
    -0.46, -0.90, 0.17, -0.04, -0.20, -0.13, 0.43, 1.48, 1.63, 2.32, 2.55,  # two before the last
)

# By match length: the only follower, seen 1, 2, 3, 4+ times; the latest of several, in most cases or not; the one
# before it, in most cases or not; earlier ones, in over a quarter of cases or not. Last row: known only from a shorter
# match of 0 to 8 tokens, latest there or not.
SUFFIX = (
    0.00,  # no match
    0.71, 0.91, 2.31, 2.19, 1.64, 0.50, 0.02, 0.75, 1.42, -0.43,  # match of 1
    1.17, 1.99, 1.66, 3.16, 0.67, -0.37, 0.15, -0.32, 0.08, -0.25,  # match of 2
    1.17, 1.60, 2.00, 2.11, 1.85, 0.42, 0.85, -0.42, -0.32, -1.08,  # match of 3
    1.87, 1.87, 2.35, 3.88, 1.89, 1.65, 1.75, 0.74, 0.82, 0.44,  # match of 4 or 5
    2.52, 2.37, 3.66, 4.12, 2.27, -1.17, 2.40, 0.39, 1.67, -0.47,  # match of 6 or 7
    3.47, 4.13, 4.29, 4.58, 3.21, 1.03, 1.70, 0.64, 1.29, 0.63,  # match of 8 to 11
    4.36, 4.67, 4.86, 5.23, 4.93, 4.06, 2.96, 3.62, 3.40, 2.90,  # match of 12 to 15
    5.03, 4.81, 5.54, 5.89, 5.26, 4.77, 4.12, 2.72, 3.79, 3.12,  # match of 16 to 23
    5.79, 5.96, 6.63, 7.37, 4.75, 2.76, 4.32, 4.31, 4.40, 3.30,  # match of 24 or more
    0.00, 0.00, 0.17, -0.96, -0.01, 0.12, 0.13, -0.04, -0.06, 0.14, 0.00, 0.00, 0.17, -0.02, 0.00, 0.00, 0.00, 0.00,
)

# By length of the row's context: no match, then by match length as above.
OTHER = (
    2.54, 1.17, 0.21, 0.05, 0.38, 0.55, 0.53, 0.05, 0.05, 0.17,  # no row
    -0.06, 0.31, 0.00, 0.00, 0.00, 0.00, 0.00, 0.00, 0.00, 0.00,  # last 1
    -0.73, 0.25, -0.37, 0.00, 0.00, 0.00, 0.00, 0.00, 0.00, 0.00,  # last 2
    -1.65, -0.54, -0.23, -0.46, -0.41, -0.31, -0.38, 0.59, 0.21, -0.94,  # last 3
)
