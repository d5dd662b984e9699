"""`POST /v1/feedback`: how good an answer was, as its caller sees it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from litestar import Request, post
from litestar.handlers import HTTPRouteHandler

from sluice.gateway.errors import GatewayError
from sluice.gateway.learning.feedback import FeedbackBox, NewFeedback
from sluice.gateway.learning.labels import Feedback
from sluice.gateway.routes.access import Access
from sluice.gateway.routes.admin.bodies import MAX_BODY_BYTES, read, refusals
from sluice.gateway.routes.counted_calls import CountedCalls


def feedback_routes(
    box: FeedbackBox, access: Access, counted: CountedCalls
) -> list[HTTPRouteHandler]:
    """The one route. Requests are their team's: those of others are not there."""

    @post(
        "/v1/feedback",
        summary="Say how good an answer was",
        tags=["feedback"],
        status_code=200,
        request_max_body_size=MAX_BODY_BYTES,
        middleware=[counted],
    )
    async def give_feedback(request: Request[Any, Any, Any]) -> Feedback:
        principal = (await access.identify(request)).principal
        if principal is None:
            raise GatewayError.forbidden("Feedback is a team's; use a team's key.")
        given = await read(request, NewFeedback)
        with refusals():
            return await box.put(UUID(principal.team_id), given)

    return [give_feedback]
