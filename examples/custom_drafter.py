"""A drafter of your own in ten lines: bigrams of the text so far, as a chain.

    python examples/custom_drafter.py "The lighthouse keeper had not spoken to anyone"

The output is that of plain decoding whatever a drafter proposes; a good one only makes it faster.
"""

from __future__ import annotations

import sys

import treedecode as td


class BigramDrafter:
    """Guesses that every token is followed by what followed it last time."""

    name = "bigram"

    def begin(self, prompt_ids: list[int]) -> None:
        """Nothing is kept between requests."""

    def propose(self, context: td.DraftContext) -> td.DraftTree:
        follower = dict(zip(context.token_ids, context.token_ids[1:], strict=False))
        chain = [context.token_ids[-1]]
        while len(chain) <= min(context.max_drafted, context.max_depth) and chain[-1] in follower:
            chain.append(follower[chain[-1]])
        return td.DraftTree(td.TreeShape.chain(len(chain) - 1), chain)


if __name__ == "__main__":
    model = td.load("default")
    prompt = " ".join(sys.argv[1:]) or "One, two, three. One, two, three. One, two,"
    [generation] = td.generate(model, prompt, max_new_tokens=64, drafter=BigramDrafter())
    print(prompt + generation.text)
    print(f"{generation.stats.mean_emitted_per_step:.2f} tokens per forward pass", file=sys.stderr)
