"""A vLLM server over HTTP, as far as the chat model sees one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse


class FakeVllm:
    """As much of a vLLM server as the model asks; it keeps the bodies."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.text = "So: The cache is compacted in place."
        self.parses_calls = True
        self.app = FastAPI()
        self.app.get("/v1/models")(self.models)
        self.app.post("/v1/chat/completions")(self.answer)

    def models(self) -> dict[str, Any]:
        card = {"id": "served", "object": "model", "created": 1, "owned_by": "vllm", "max_model_len": 99}
        return {"object": "list", "data": [card]}

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        message = None
        if len(body["messages"][-1]["content"]) > 99:
            message = "This model's maximum context length is 99 tokens. However, you asked for more."
        if "tools" in body and not self.parses_calls:
            message = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        if message is not None:
            error = {"message": message, "type": "BadRequestError", "param": None, "code": 400}
            return JSONResponse({"error": error}, 400)
        head = {"id": "chatcmpl-1", "created": 1, "model": "served"}
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        text = self.text
        end = {"index": 0, "finish_reason": "stop", "stop_reason": "!", "logprobs": None}
        if not body.get("stream"):
            said = {"role": "assistant", "content": text, "tool_calls": []}
            choices = [{**end, "message": said}]
            return JSONResponse({**head, "object": "chat.completion", "choices": choices, "usage": usage})

        def events() -> Iterator[str]:
            for choices, more in (
                ([{"index": 0, "delta": {"role": "assistant", "content": text[:9]}}], {}),
                ([{**end, "delta": {"content": text[9:]}}], {}),
                ([], {"usage": usage}),
            ):
                chunk = {**head, "object": "chat.completion.chunk", "choices": choices, **more}
                yield f"data: {json.dumps(chunk)}\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")
