"""Is the output exact here? Trees against plain decoding on a user's own model, prompts, settings and servers.

Nothing is taken on trust: what trees emit is compared with plain decoding, with one plain forward pass over the whole
text, and with distributions that transformers' own processors make of that pass (docs/verify.md).

- ``settings``, ``prompts``, ``results``: what is asked for, and what was found.
- ``local``: the checks of a loaded model, ``verify_model``.
- ``endpoint``: those of a running OpenAI-compatible server, ``verify_endpoint``.
- ``plain``, ``processed``, ``rounding``: the model alone, and how far rounding can go.
- ``judged``, ``rules``, ``counts``, ``draws``, ``logprobs``: tokens, counts and logprobs against it.
- ``client``, ``completion``, ``reference``, ``followed``, ``samples``: servers.
"""
