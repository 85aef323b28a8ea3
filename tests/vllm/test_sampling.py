"""vLLM's own sampler on expanded rows, and the walk: exact distribution, one draw per node, per-path histories."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from treedecode.tree import DraftTree

pytestmark = pytest.mark.vllm

VOCAB = 12
TREE = DraftTree.build([-1, 0, 0, 1, 1, 2], [3, 1, 2, 4, 5, 6])[0]


def metadata(num_requests=1, temperature=1.0, **changes):
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata

    zeros = torch.zeros(num_requests)
    fields = {
        "temperature": zeros + temperature,
        "all_greedy": bool((zeros + temperature == 0).all()),
        "all_random": bool((zeros + temperature > 0).all()),
        "top_p": None,
        "top_k": None,
        "generators": {},
        "max_num_logprobs": None,
        "no_penalties": True,
        "prompt_token_ids": None,
        "frequency_penalties": zeros,
        "presence_penalties": zeros,
        "repetition_penalties": zeros + 1,
        "output_token_ids": [],
        "allowed_token_ids_mask": None,
        "bad_words_token_ids": {},
        "logitsprocs": LogitsProcessors([]),
    }
    return SamplingMetadata(**{**fields, **changes})


def sample(logits, sampling_metadata, trees, outputs=None):
    """Sampled tokens per row after the expansion, and the walks."""
    from vllm import SamplingParams
    from vllm.v1.sample.sampler import Sampler

    from treedecode.vllm.sampling import RequestRows, expand_metadata
    from treedecode.vllm.walk import walk_rows, walked_output

    outputs = outputs or [[] for _ in trees]
    requests = [RequestRows(tree, SamplingParams(), out) for tree, out in zip(trees, outputs, strict=True)]
    expanded, draws = expand_metadata(sampling_metadata, requests, None, VOCAB)
    output = Sampler()(logits.clone(), expanded)
    walks = walk_rows(trees, output.sampled_token_ids[:, 0].tolist())
    for request, walk in enumerate(walks):
        draws.set_emitted(request, len(walk.token_ids))
    return walked_output(output, trees, walks), walks


def test_the_walk_emits_the_targets_distribution_and_accepts_with_its_probability():
    """Re-checking the sampled path with a rejection sampler would accept with the square of it."""
    torch.manual_seed(1)
    logits = torch.randn(TREE.num_nodes, VOCAB) * 1.5
    probs = logits.double().softmax(-1)
    num_runs = 4000
    many = logits.repeat(num_runs, 1)
    _, walks = sample(many, metadata(num_runs), [TREE] * num_runs)
    firsts = Counter(walk.token_ids[0] for walk in walks)
    assert chisquare([firsts[t] for t in range(VOCAB)], (probs[0] * num_runs).numpy()).pvalue > 1e-4
    below = [walk for walk in walks if walk.token_ids[0] == 1]
    seconds = Counter(walk.token_ids[1] for walk in below)
    assert chisquare([seconds[t] for t in range(VOCAB)], (probs[1] * len(below)).numpy()).pvalue > 1e-4
    # the first drafted level holds the tokens 1 and 2
    expected = float(probs[0, 1] + probs[0, 2])
    rate = np.mean([walk.num_accepted > 0 for walk in walks])
    squared = float(probs[0, 1] ** 2 + probs[0, 2] ** 2)
    assert abs(rate - expected) < 0.03 < abs(squared - expected)


def test_seeded_requests_draw_as_if_there_were_no_tree():
    torch.manual_seed(2)
    by_path = {(): torch.randn(VOCAB), (1,): torch.randn(VOCAB), (1, 4): torch.randn(VOCAB)}
    by_path |= {(1, 5): torch.randn(VOCAB), (2,): torch.randn(VOCAB), (2, 6): torch.randn(VOCAB)}
    logits = torch.stack([by_path[()], by_path[1,], by_path[2,], by_path[1, 4], by_path[1, 5], by_path[2, 6]])
    root_only = DraftTree.root_only(3)
    lengths = Counter()
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        _, [walk] = sample(logits, metadata(generators={0: generator}), [TREE])
        plain, emitted = torch.Generator().manual_seed(seed), ()
        for _ in walk.token_ids:
            _, [step] = sample(by_path[emitted][None], metadata(generators={0: plain}), [root_only])
            emitted += tuple(step.token_ids)
        assert tuple(walk.token_ids) == emitted
        assert torch.equal(generator.get_state(), plain.get_state())
        lengths[len(emitted)] += 1
    assert lengths[2] > 3 and lengths[1] > 3


def test_penalties_count_per_path():
    """Siblings do not count for each other; CASES 32."""
    chain = DraftTree.trusted([-1, 0, 1, 2], [2, 1, 1, 1])
    logits = torch.zeros(4, 16)
    logits[:, 1], logits[:, 15] = 100, 99
    for penalty, expected in ((1.5, [1, 15]), (0.7, [1, 1, 15])):
        given = metadata(
            temperature=0,
            no_penalties=False,
            frequency_penalties=torch.tensor([penalty]),
            prompt_token_ids=torch.tensor([[2]]),
            output_token_ids=[[]],
        )
        _, [walk] = sample(logits, given, [chain])
        assert walk.token_ids == expected
    star = DraftTree.trusted([-1, 0, 0, 1], [2, 1, 15, 15])
    given = metadata(
        temperature=0,
        no_penalties=False,
        frequency_penalties=torch.tensor([1.5]),
        prompt_token_ids=torch.tensor([[2]]),
        output_token_ids=[[]],
    )
    _, [walk] = sample(logits, given, [star])
    # after 1, 15; then 1 has 98.5 and 15 has 97.5: with the sibling 15 counted twice it would be the same, with the
    # path's own 1 not counted 100
    assert walk.token_ids == [1, 15, 1]


def test_bad_words_and_histories_follow_the_path():
    from treedecode.vllm.sampling import path_histories

    assert path_histories(TREE, [9]) == [[9], [9, 1], [9, 2], [9, 1, 4], [9, 1, 5], [9, 2, 6]]
    padded = DraftTree.trusted([-1, 0, 1], [3, 7, -1])
    assert path_histories(padded, []) == [[], [7], [7]]
    logits = torch.zeros(TREE.num_nodes, VOCAB)
    logits[:, 4], logits[0, 1] = 5, 9
    given = metadata(temperature=0, bad_words_token_ids={0: [[1, 4]]}, output_token_ids=[[]])
    _, [walk] = sample(logits, given, [TREE])
    assert walk.token_ids[:2] == [1, 0]


def test_rows_of_several_requests_keep_their_own_parameters():
    """A batch with temperatures 0, 1, 0 and trees of 0, 5 and 1 drafted nodes."""
    small = DraftTree.build([-1, 0], [3, 7])[0]
    trees = [DraftTree.root_only(3), TREE, small]
    logits = torch.zeros(9, VOCAB)
    logits[0, 8], logits[7, 7], logits[8, 2] = 9, 9, 9
    given = metadata(
        3,
        temperature=torch.tensor([0.0, 1.0, 0.0]),
        top_k=torch.tensor([VOCAB, 1, VOCAB]),
        max_num_logprobs=1,
    )
    logits[1, 1], logits[2, 4], logits[4, 11] = 9, 9, 9
    output, walks = sample(logits, given, trees)
    assert [walk.token_ids for walk in walks] == [[8], [1, 4, 11], [7, 2]]
    assert output.sampled_token_ids.tolist() == [[8, -1, -1], [1, 4, 11], [7, 2, -1]]
    listed = output.logprobs_tensors.logprob_token_ids[:, 0].view(3, 3).tolist()
    assert listed[1] == [1, 4, 11] and listed[0][0] == 8 and listed[2][:2] == [7, 2]
