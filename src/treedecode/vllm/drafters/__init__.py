"""vLLM's own drafters as spines of trees: a draft model, EAGLE, MTP or Medusa, with the runner-up candidates as leaves.

A drafter's forward pass says more than the token it would propose: the next best candidates cost nothing. Each spine
position keeps its best ``width`` candidates, the first goes on, the others are leaves.
"""
