"""Grammars over a tree: what may follow each node, by walking the matcher down the tree and back.

A grammar is about the output, not the prompt. It allows text tokens; the request's stop tokens end the output where the
grammar is complete, and nowhere else. A grammar that ends inside a tree leaves nothing but them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from treedecode.engines.path import Paths
from treedecode.tree import DraftTree


class GrammarMatcher(Protocol):
    """Where one output stands in a grammar. Stop tokens are never shown to it."""

    def consume(self, token_id: int) -> bool:
        """Takes the next token; False, and nothing changes, if the grammar does not allow it here."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Takes back the last ``num_tokens`` tokens that were consumed."""
        ...

    def is_complete(self) -> bool:
        """Whether the output may end here."""
        ...

    def allowed(self) -> np.ndarray:
        """The tokens that may come next, uint32 ``[ceil(vocab / 32)]``: token t is bit ``t % 32`` of word ``t // 32``.

        All zeros where the grammar has ended.
        """
        ...


@runtime_checkable
class CompiledGrammar(Protocol):
    """A grammar for one tokenizer and vocabulary, whatever engine it belongs to."""

    def matcher(self) -> GrammarMatcher:
        """A matcher at the start of an output."""
        ...


class GrammarMask:
    """A request's grammar, as a stage of ``processing`` and as the judge of its drafts.

    ``min_tokens`` is applied here, because it yields: where the grammar allows nothing but the end, the output ends.

    Args:
        matcher: At the start of the output.
        stop_ids: Tokens that end the output.
        vocab_size: Columns of the logits.
        min_tokens: Stop tokens are forbidden until so many tokens are emitted.

    Raises:
        ValueError: There is no stop token in the vocabulary, so that no output could end where the grammar does.
    """

    def __init__(
        self, matcher: GrammarMatcher, stop_ids: Collection[int], vocab_size: int, min_tokens: int
    ) -> None:
        self._matcher, self._vocab_size, self._min_tokens = matcher, vocab_size, min_tokens
        self._stop_ids = frozenset(token for token in stop_ids if token < vocab_size)
        if not self._stop_ids:
            raise ValueError(
                "a grammar ends with a stop token: expected at least one as eos_token_id, got none"
            )
        self._stop_bits = np.zeros(-(-vocab_size // 32), np.uint32)
        for token in self._stop_ids:
            self._stop_bits[token // 32] |= np.uint32(1 << token % 32)
        self._num_consumed = 0

    def prune(self, tree: DraftTree, history: Sequence[int], num_output: int) -> DraftTree:
        """``tree`` without the nodes that the grammar does not allow; for deterministic drafts only.

        Args:
            tree: A draft rooted at the last token of ``history``.
            history: Prompt and output.
            num_output: How many of its tokens are output.
        """
        if not tree.num_drafted:
            return tree
        self._follow(history, num_output)
        legal = self._walk(tree, lambda node: None)
        return tree if len(legal) == tree.num_nodes else tree.only(legal)

    def __call__(self, logits: Tensor, paths: Paths) -> Tensor:
        self._follow(paths.committed.token_ids, paths.committed.num_output)
        words = np.full((paths.tree.num_nodes, len(self._stop_bits)), np.uint32(0xFFFFFFFF))

        def read(node: int) -> None:
            allowed = self._matcher.allowed()
            if allowed.shape != self._stop_bits.shape:
                raise ValueError(
                    f"a grammar must allow tokens of the model's vocabulary: expected {len(self._stop_bits)} words "
                    f"of 32 for {self._vocab_size} tokens, got shape {list(allowed.shape)}"
                )
            allowed = allowed & ~self._stop_bits
            may_end = paths.num_output[node] >= self._min_tokens or not allowed.any()
            words[node] = allowed | self._stop_bits if may_end and self._matcher.is_complete() else allowed

        self._walk(paths.tree, read)
        bits = np.unpackbits(words.astype("<u4").view(np.uint8), axis=1, bitorder="little")
        forbidden = torch.from_numpy(bits[:, : self._vocab_size] == 0).to(logits.device)
        return logits.masked_fill_(forbidden, -math.inf)

    def _follow(self, history: Sequence[int], num_output: int) -> None:
        """Consumes the output that is new."""
        start = len(history) - num_output
        for place in range(start + self._num_consumed, len(history)):
            if not self._matcher.consume(history[place]):
                raise RuntimeError(f"the grammar engine allowed token {history[place]}, and then refused it")
        self._num_consumed = num_output

    def _walk(self, tree: DraftTree, visit: Callable[[int], None]) -> list[int]:
        """Calls ``visit`` at every allowed node that is no end of the output; returns all allowed ones, in order."""
        legal = [0]
        depth, depths, tokens = 0, tree.shape.depth_tuple, tree.token_tuple
        todo = [0]
        while todo:
            node = todo.pop()
            if node:
                above = depths[node] - 1
                if depth > above:
                    self._matcher.rollback(depth - above)
                    depth = above
                if tokens[node] in self._stop_ids:
                    if self._matcher.is_complete():
                        legal.append(node)
                    continue
                if not self._matcher.consume(tokens[node]):
                    continue
                depth += 1
                legal.append(node)
            visit(node)
            todo.extend(reversed(tree.shape.children(node)))
        if depth:
            self._matcher.rollback(depth)
        return sorted(legal)
