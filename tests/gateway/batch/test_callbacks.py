"""The end of a batch is told to its team's URL: signed, again until it is heard, and on record."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from openai import InvalidWebhookSignatureError, OpenAI
from openai.types.webhooks import BatchCompletedWebhookEvent
from standardwebhooks import Webhook, WebhookVerificationError

from sluice.gateway.batch.callback_secrets import OVERLAP, CallbackSecrets
from sluice.gateway.batch.callbacks import (
    BACKOFF_SECONDS,
    LEASE_SECONDS,
    CallbackDeliverer,
    Delivery,
    after,
)
from sluice.gateway.egress import Egress, EgressPolicy
from tests.gateway.batch.jobs_site import JobsSite, chat_lines
from tests.harness.gateway import ADMIN_KEY, TEAM_KEY, Gateway

LOOPBACK = ipaddress.ip_network("127.0.0.1/32")


class Receiver:
    """A team's server: notes what it is sent, and answers as told."""

    def __init__(self) -> None:
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        self.held: asyncio.Event | None = None
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._answer)
        self.server = TestServer(app, host="127.0.0.1")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}/hook?token=of-the-team"

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.received.append((headers, await request.read()))
        if self.held is not None:
            await self.held.wait()
        status = self.statuses.pop(0) if self.statuses else 204
        return web.Response(status=status, headers={"location": "/elsewhere"})


class Clock:
    """A time that is set."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now


class Site:
    """A database with batches, a deliverer, and a team's server."""

    def __init__(self, pool: asyncpg.Pool, jobs: JobsSite, receiver: Receiver) -> None:
        self.pool = pool
        self.jobs = jobs
        self.receiver = receiver
        self.clock = Clock()
        self.secrets = CallbackSecrets(pool, "a secret of the installation, long enough")
        self.observed: list[str] = []
        self.deliverer = self.another()

    def another(self, **policy: Any) -> CallbackDeliverer:
        """One more deliverer, as another process has it."""
        given = {
            "allow_networks": (LOOPBACK,),
            "ports": frozenset({self.receiver.server.port or 0, 443}),
            "max_redirects": 0,
            **policy,
        }
        egress = Egress(EgressPolicy(**given))
        return CallbackDeliverer(self.pool, egress, self.secrets, self.observed.append, self.clock)

    async def ended_batch(
        self, url: str | None = None, owner: tuple[UUID, UUID] | None = None
    ) -> UUID:
        """A batch that has ended, with a callback."""
        batch = await self.jobs.submit(chat_lines(1), owner)
        await self.pool.execute(
            "UPDATE batches SET status = 'completed', completed = 1, completed_at = now(),"
            " metadata = '{\"run\": \"7\"}', callback = jsonb_build_object('url', $2::text)"
            " WHERE id = $1",
            batch.id,
            self.receiver.url if url is None else url,
        )
        return batch.id

    async def callback(self, batch_id: UUID) -> dict[str, Any]:
        """What a batch's record says of its callback."""
        text = await self.pool.fetchval("SELECT callback FROM batches WHERE id = $1", batch_id)
        record: dict[str, Any] = json.loads(text)
        return record

    async def deliver(self) -> int:
        """All that is due; how many there were."""
        begun = await self.deliverer.deliver_due()
        await self.deliverer.idle()
        return begun


@pytest.fixture
async def site(emptied_site: JobsSite) -> AsyncIterator[Site]:
    receiver = Receiver()
    await receiver.server.start_server()
    yield Site(emptied_site.pool, emptied_site, receiver)
    await receiver.server.close()


async def test_a_receiver_reads_it_with_the_official_sdk(site: Site) -> None:
    batch_id = await site.ended_batch()
    assert await site.deliver() == 1
    headers, body = site.receiver.received[0]
    team_id, _ = await site.jobs.team()
    secret = await site.secrets.current(team_id)
    with OpenAI(api_key="any", webhook_secret=secret) as sdk:
        event = sdk.webhooks.unwrap(body, headers)
    assert isinstance(event, BatchCompletedWebhookEvent)
    assert event.data.id == f"batch_{batch_id.hex}"
    assert json.loads(body)["data"] == {
        "id": event.data.id,
        "status": "completed",
        "request_counts": {"total": 1, "completed": 1, "failed": 0},
        "metadata": {"run": "7"},
    }
    record = await site.callback(batch_id)
    assert record["ended"] == "delivered"
    assert [each["status_code"] for each in record["deliveries"]] == [204]
    assert site.observed == ["delivered"]
    assert await site.deliver() == 0


async def test_a_forged_or_altered_one_is_refused(site: Site) -> None:
    await site.ended_batch()
    await site.deliver()
    headers, body = site.receiver.received[0]
    team_id, _ = await site.jobs.team()
    other_team, _ = await site.jobs.other_team("others")
    with OpenAI(api_key="any") as sdk:
        sdk.webhooks.verify_signature(body, headers, secret=await site.secrets.current(team_id))
        for text, secret in (
            (body, await site.secrets.current(other_team)),
            (body.replace(b"completed", b"cancelled"), await site.secrets.current(team_id)),
        ):
            with pytest.raises(InvalidWebhookSignatureError):
                sdk.webhooks.verify_signature(text, headers, secret=secret)


async def test_after_a_rotation_old_and_new_secret_verify_for_a_while(site: Site) -> None:
    team_id, _ = await site.jobs.team()
    old = await site.secrets.current(team_id)
    new = await site.secrets.rotate(team_id, site.clock())
    assert old != new == await site.secrets.current(team_id)
    await site.ended_batch()
    await site.deliver()
    headers, body = site.receiver.received[0]
    for secret in (old, new):
        assert Webhook(secret).verify(body, headers)
    assert len(await site.secrets.signing(team_id, site.clock() + OVERLAP)) == 1
    newest = await site.secrets.rotate(team_id, site.clock())
    with pytest.raises(WebhookVerificationError):
        Webhook(newest).verify(body, headers)


async def test_it_is_sent_again_with_the_same_id_and_body(site: Site) -> None:
    site.receiver.statuses = [500, 302, 404]
    batch_id = await site.ended_batch()
    for waited in (0, *BACKOFF_SECONDS[:3]):
        site.clock.now += timedelta(seconds=waited - 1)
        if waited:
            assert await site.deliver() == 0
        site.clock.now += timedelta(seconds=1 + waited / 10)
        assert await site.deliver() == 1
    assert len({(headers["webhook-id"], body) for headers, body in site.receiver.received}) == 1
    assert len({headers["webhook-signature"] for headers, _ in site.receiver.received}) == 4
    record = await site.callback(batch_id)
    assert record["ended"] == "delivered"
    assert [each["status_code"] for each in record["deliveries"]] == [500, None, 404, 204]
    assert record["deliveries"][1]["error"] == "too many redirects"
    assert site.observed == ["failed", "failed", "failed", "delivered"]


async def test_a_url_inside_the_network_is_not_fetched(site: Site) -> None:
    site.deliverer = site.another(allow_networks=())
    batch_id = await site.ended_batch()
    assert await site.deliver() == 1
    assert site.receiver.received == []
    record = await site.callback(batch_id)
    assert record["ended"] == "refused"
    assert record["deliveries"][0]["error"] == "the host is at an address that is not public"


async def test_a_killed_process_leaves_its_delivery_to_another(site: Site) -> None:
    site.receiver.held = asyncio.Event()
    batch_id = await site.ended_batch()
    working = asyncio.create_task(site.deliverer.run())
    async with asyncio.timeout(10):
        while not site.receiver.received:
            await asyncio.sleep(0.01)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    site.receiver.held.set()
    site.deliverer = site.another()
    assert await site.deliver() == 0
    site.clock.now += timedelta(seconds=LEASE_SECONDS + 1)
    assert await site.deliver() == 1
    assert (await site.callback(batch_id))["ended"] == "delivered"


async def test_a_slow_receiver_holds_up_its_own_team_only(site: Site) -> None:
    site.receiver.held = asyncio.Event()
    await site.ended_batch()
    await site.ended_batch()
    others = await site.jobs.other_team("others")
    await site.ended_batch(owner=others)
    assert await site.deliverer.deliver_due() == 2
    assert await site.deliverer.deliver_due() == 0
    site.receiver.held.set()
    await site.deliverer.idle()
    assert await site.deliver() == 1


async def test_two_processes_deliver_once(site: Site) -> None:
    for _ in range(5):
        await site.ended_batch(owner=await site.jobs.other_team(f"team-{_}"))
    other = site.another()
    begun = await asyncio.gather(site.deliverer.deliver_due(), other.deliver_due())
    assert sum(begun) == 5
    await asyncio.gather(site.deliverer.idle(), other.idle())
    assert len({headers["webhook-id"] for headers, _ in site.receiver.received}) == 5
    assert len(site.receiver.received) == 5


async def test_batches_under_way_or_without_a_callback_are_left_alone(site: Site) -> None:
    batch_id = await site.ended_batch()
    await site.pool.execute("UPDATE batches SET status = 'finalizing' WHERE id = $1", batch_id)
    await site.jobs.submit(chat_lines(1))
    assert await site.deliver() == 0


@pytest.mark.parametrize(
    ("delivery", "ended"),
    [
        (Delivery(5, 200), "delivered"),
        (Delivery(5, 299), "delivered"),
        (Delivery(5, 410), "gave_up"),
        (Delivery(5, 500), None),
        (Delivery(5, 301), None),
        (Delivery(5, None, "no answer in time"), None),
        (Delivery(5, None, "not public", refused=True), "refused"),
    ],
)
def test_what_ends_it(delivery: Delivery, ended: str | None) -> None:
    record = after({"url": "https://a.example/"}, delivery, 0.0)
    assert record.get("ended") == ended
    assert ("next_at" in record) == (ended is None)


def test_waits_grow_and_end_after_three_days() -> None:
    record: dict[str, Any] = {"url": "https://a.example/"}
    at, waits = 0, []
    while "ended" not in record:
        record = after(record, Delivery(at, 503), 0.0)
        waits.append(record.get("next_at", at) - at)
        at = record.get("next_at", at)
    assert record["ended"] == "gave_up"
    assert tuple(waits[:-1]) == BACKOFF_SECONDS
    assert len(record["deliveries"]) == len(BACKOFF_SECONDS) + 1
    varied = after({"url": "https://a.example/"}, Delivery(0, 503), 0.99)
    assert BACKOFF_SECONDS[0] <= varied["next_at"] <= BACKOFF_SECONDS[0] * 1.1 + 1


async def test_without_a_given_secret_the_database_has_one(site: Site) -> None:
    team_id, _ = await site.jobs.team()
    secrets = [CallbackSecrets(site.pool, None) for _ in range(2)]
    for each in secrets:
        await each.start()
    one, other = [await each.current(team_id) for each in secrets]
    assert one == other != await site.secrets.current(team_id)
    assert one.startswith("whsec_")


def test_a_team_reads_and_rotates_its_own_secret(gateway: Gateway) -> None:
    def ask(method: str, path: str, key: str = TEAM_KEY) -> httpx.Response:
        return gateway.request(method, f"/v1/callback_secret{path}", None, key)

    first = ask("GET", "")
    assert first.json()["object"] == "callback_secret"
    assert first.headers["cache-control"] == "no-store"
    rotated = ask("POST", "/rotate")
    assert rotated.status_code == 200
    assert first.json()["secret"] != rotated.json()["secret"] == ask("GET", "").json()["secret"]
    assert ask("GET", "", ADMIN_KEY).status_code == 403
    assert ask("GET", "", "nobody's").status_code == 401
