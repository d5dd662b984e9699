"""Conversations of Responses clients: recalled before dispatch, remembered before the end."""

from __future__ import annotations

from typing import Any

import structlog
import uuid_utils

from sluice.gateway.errors import GatewayError
from sluice.gateway.responses import ResponseStore, StoreAway, Turn
from sluice.router.auto.choice import AutoChoice
from sluice.router.translation import Call, Conversation
from sluice.wire.errors import InvalidRequest
from sluice.wire.request import Request
from sluice.wire.responses_items import response_of
from sluice.wire.responses_request import input_items, previous_response, references, stores

_log = structlog.get_logger("sluice.responses")


class Conversations:
    """Reads and writes a team's conversations."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def recall(self, team_id: str, request: Request) -> Conversation:
        """What a request continues, with the id of the response to come.

        Raises:
            GatewayError: 400 for a response that the team does not have, 503 while the store is
                away.
            InvalidRequest: `previous_response_id` is no text.
        """
        response_id = f"resp_{uuid_utils.uuid7().hex}"
        previous = previous_response(request)
        if previous is None:
            return Conversation(response_id, (), await self._referenced(team_id, request))
        try:
            turns = await self._store.chain(team_id, previous)
        except StoreAway:
            raise GatewayError.store_away() from None
        if turns is None:
            raise GatewayError.invalid(
                f"Previous response with id '{previous}' not found.",
                "previous_response_id",
                "previous_response_not_found",
            )
        history = [item for turn in turns for item in turn.items()]
        key = turns[-1].conversation or None
        return Conversation(response_id, history, await self._referenced(team_id, request), key)

    async def _referenced(self, team_id: str, request: Request) -> dict[str, dict[str, Any]]:
        """The stored items that a request's input refers to, by their ids."""
        wanted = references(request)
        found: dict[str, dict[str, Any]] = {}
        for owner in dict.fromkeys(map(response_of, wanted)):
            if owner is None:
                continue
            try:
                turn = await self._store.get(team_id, owner)
            except StoreAway:
                raise GatewayError.store_away() from None
            if turn is not None:
                found |= {item["id"]: item for item in turn.items() if "id" in item}
        return {reference: found[reference] for reference in wanted if reference in found}

    async def remember(
        self, team_id: str, call: Call, response: dict[str, Any], choice: AutoChoice | None
    ) -> None:
        """Keep a finished response, unless its client does not want it kept.

        A store that is away costs the client its conversation's continuation, not its answer.

        Args:
            team_id: whose it is.
            call: that it answers.
            response: the Response object.
            choice: of `auto`, where that was asked for.
        """
        if call.conversation is None or not stores(call.request):
            return
        try:
            items = input_items(call.request, str(response["id"]), call.conversation.referenced)
            key = call.conversation.key if choice is None else choice.conversation
            turn = Turn(response, items, conversation=key or b"")
            await self._store.save(team_id, turn, previous_response(call.request))
        except (StoreAway, InvalidRequest) as error:
            _log.warning("response not stored", request_id=call.request_id, reason=str(error))
