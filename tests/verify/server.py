"""A small OpenAI-compatible server, honest or not, in this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

VOCAB, TIED_AT, STOP = 40, 5, 39
NAME = "small"
MODELS = [{"id": NAME}, {"id": "other"}]


@dataclass(frozen=True)
class Behaviour:
    """What the server does, and how it lies.

    Attributes:
        wrong_at: Output position at which it says another token than its best.
        swap_ties: After ``TIED_AT`` tokens of prompt and output, it says the second of two that tie but for ``tie``.
        tie: That difference.
        shift: Added to the logprobs of outputs.
        noise: Added to the logits of prompt rows, alternating in sign: what rounding does.
        sharpen: Divides the temperature.
        stream: "" or what is wrong with streams: "lost", "changed", "cut", "error".
        early: Tokens after which it stops.
        key: Of the noise of sampling.
        vllm: "ids", "ignored" (fields that it does not know), or "refused".
        logprobs: "given", "none" or "refused".
        odd_top: What the logprobs of the likeliest tokens all are; None for what they are.
        odd_noise: The same where one token alone is asked for.
        samples: Tokens of a sample at most.
        secret: The key that it asks for.
        broken: Answers all completions with this, as it is.
        logits: Its model, from token ids to logits; None for one that knows the last two tokens.
    """

    wrong_at: int | None = None
    swap_ties: bool = False
    tie: float = 1e-5
    shift: float = 0.0
    noise: float = 0.0
    sharpen: float = 1.0
    stream: str = ""
    early: int | None = None
    key: int = 0
    vllm: str = "ids"
    logprobs: str = "given"
    odd_top: float | None = None
    odd_noise: float | None = None
    samples: int | None = None
    secret: str = ""
    broken: str = ""
    logits: Callable[[list[int]], np.ndarray] | None = None


def known(context: list[int]) -> np.ndarray:
    """Logits of the small model."""
    return np.random.default_rng(context[-2:]).normal(size=VOCAB) * 2


def tokenize(prompt: str | list[int]) -> list[int]:
    return list(prompt) if isinstance(prompt, list) else [ord(letter) % (VOCAB - 1) for letter in prompt]


def word(token: int) -> str:
    return f" w{token}"


class Answer:
    """One completion."""

    def __init__(self, does: Behaviour, body: dict[str, Any]) -> None:
        self.prompt = tokenize(body["prompt"])
        self.ids: list[int] = []
        self.rows: list[np.ndarray] = []
        temperature, seed = body["temperature"], body.get("seed", 0)
        most = min(body["max_tokens"], does.early or 10**9, (temperature and does.samples) or 10**9)
        while len(self.ids) < most:
            position = len(self.ids)
            context = [*self.prompt, *self.ids]
            logits = (does.logits or known)(context)
            best, second = (int(token) for token in np.argsort(-logits)[:2])
            if does.logits is None and len(context) == TIED_AT:
                logits[second] = logits[best] - does.tie
            if position == 0:
                logits += does.noise * (-1) ** np.arange(len(logits))
            self.rows.append(logits - np.log(np.exp(logits).sum()))
            if temperature:
                weights = np.exp(logits * does.sharpen / temperature)
                rng = np.random.default_rng([seed, position, does.key])
                self.ids.append(int(rng.choice(len(logits), p=weights / weights.sum())))
            elif does.wrong_at == position or (does.swap_ties and len(context) == TIED_AT):
                self.ids.append(second)
            else:
                self.ids.append(int(np.argmax(logits)))

    def choice(self, does: Behaviour, body: dict[str, Any], first: int, last: int) -> dict[str, Any]:
        ids = self.ids[first:last]
        made: dict[str, Any] = {"index": 0, "text": "".join(map(word, ids)), "logprobs": None}
        with_ids = does.vllm == "ids" and body.get("return_token_ids")
        if with_ids:
            made |= {"token_ids": ids, "prompt_token_ids": self.prompt if first == 0 else None}
        if body.get("logprobs") and does.logprobs == "given":
            names = [f"token_id:{t}" if with_ids else word(t) for t in range(len(self.rows[0]))]
            rows = self.rows[first:last]
            odd = does.odd_noise if body["max_tokens"] == 1 and does.odd_noise is not None else does.odd_top
            made["logprobs"] = {
                "tokens": [names[token] for token in ids],
                "token_logprobs": [float(row[t]) + does.shift for row, t in zip(rows, ids, strict=True)],
                "top_logprobs": [
                    {
                        names[t]: float(row[t]) if odd is None else odd
                        for t in np.argsort(-row)[: body["logprobs"]]
                    }
                    for row in rows
                ],
            }
        return made


class _Server(ThreadingHTTPServer):
    request_queue_size = 64  # of 5, the default, some of 16 clients at once wait a second or are cut off


class LyingServer:
    """Listens on a free port of this machine until it is stopped."""

    def __init__(self, **lies: Any) -> None:
        self.does = Behaviour(**lies)
        self.requests: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None: ...

            def do_GET(self) -> None:
                if self.allowed():
                    self.send(200, {"data": MODELS})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append(body)
                if self.allowed():
                    outer.answer(self, body)

            def allowed(self) -> bool:
                if outer.does.secret and self.headers["Authorization"] != f"Bearer {outer.does.secret}":
                    self.send(401, {"error": "Unauthorized"})
                elif not self.path.startswith("/v1/"):
                    self.send(404, {"detail": "Not Found"})
                else:
                    return True
                return False

            def send(self, status: int, content: Any) -> None:
                text = content if isinstance(content, str) else json.dumps(content)
                self.send_response(status)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def now(self, **lies: Any) -> None:
        """Behaves otherwise from here on."""
        self.does = replace(self.does, **lies)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, handler: Any, body: dict[str, Any]) -> None:
        does = self.does
        if does.broken:
            handler.send(200, does.broken)
        elif does.vllm == "refused" and "return_token_ids" in body:
            handler.send(400, {"error": {"message": "Unrecognized request argument: return_token_ids"}})
        elif does.logprobs == "refused" and "logprobs" in body:
            handler.send(400, {"error": {"message": "logprobs are not supported by this model"}})
        elif body.get("stream"):
            self.stream(handler, body)
        else:
            answer = Answer(does, body)
            handler.send(200, {"choices": [answer.choice(does, body, 0, len(answer.ids))]})

    def stream(self, handler: Any, body: dict[str, Any]) -> None:
        does, answer = self.does, Answer(self.does, body)
        count = len(answer.ids)
        pieces = [{"choices": [answer.choice(does, body, at, at + 2)]} for at in range(0, count, 2)]
        if does.stream == "lost":
            del pieces[1]
        if does.stream == "changed":
            pieces[1]["choices"][0]["text"] += "!"
        lines = [f"data: {json.dumps(piece)}\n\n" for piece in pieces]
        if does.stream == "error":
            lines[1:] = ['data: {"error": {"message": "out of memory"}}\n\n']
        elif does.stream != "cut":
            lines.append("data: [DONE]\n\n")
        handler.send(200, ": hello\n\n" + "".join(lines))


Serve = Callable[..., LyingServer]
