"""An upstream whose two models are as good as the data says they were: each answers a prompt with
its outcome, which the caller reads as a grader would read a real answer."""

from collections.abc import Mapping
from typing import Any

from aiohttp import web

WEAK, STRONG = "weak-model", "strong-model"

#: Every answer takes as many tokens, so that costs tell the shares of the models.
_TOKENS = {"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200}


def upstream(outcomes: Mapping[str, Mapping[str, float]]) -> web.Application:
    """The upstream.

    Args:
        outcomes: by prompt and model, 0 to 1.
    """

    async def answer(request: web.Request) -> web.Response:
        body: dict[str, Any] = await request.json()
        model, prompt = body["model"], body["messages"][-1]["content"]
        message = {"role": "assistant", "content": str(outcomes[prompt][model])}
        return web.json_response(
            {
                "id": "chatcmpl-bench",
                "object": "chat.completion",
                "created": 1,
                "model": model,
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": _TOKENS,
            }
        )

    app = web.Application(client_max_size=16 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", answer)
    return app
