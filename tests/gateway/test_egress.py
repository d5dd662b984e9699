"""What the server fetches on somebody's word: never its own network, however it is spelled."""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from sluice.gateway.addresses import Address, is_metadata, is_public, numeric_host
from sluice.gateway.egress import Egress, EgressFailed, EgressPolicy, EgressRefused

LOOPBACK = ipaddress.ip_network("127.0.0.1/32")


class Names:
    """A resolver that answers as told, one answer after the other; the last one stays."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self._answers = {
            name.replace("_", "."): [[ipaddress.ip_address(text) for text in each] for each in some]
            for name, some in answers.items()
        }
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[Address]:
        self.asked.append(host)
        answers = self._answers.get(host)
        if not answers:
            raise OSError("no such name")
        return answers.pop(0) if len(answers) > 1 else answers[0]


class Site:
    """A server that redirects and answers as its paths say, and notes what it is sent."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._answer)
        self.server = TestServer(app, host="127.0.0.1")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.seen.append((request.method, request.path, headers, await request.read()))
        match request.path:
            case "/to":
                target = request.query["url"]
                return web.Response(
                    status=int(request.query.get("status", "302")), headers={"location": target}
                )
            case "/large":
                return web.Response(body=b"x" * 5000)
            case "/bomb":
                body = gzip.compress(b"x" * 10_000_000)
                return web.Response(body=body, headers={"content-encoding": "gzip"})
            case "/slow":
                await asyncio.Event().wait()
        return web.Response(text="hello")


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    running = Site()
    await running.server.start_server()
    yield running
    await running.server.close()


def egress(site: Site, names: Names, **more: Any) -> Egress:
    """An egress to which the site's address counts as public."""
    policy = EgressPolicy(
        allow_networks=(LOOPBACK,), ports=frozenset({site.server.port or 0}), seconds=3
    )
    return Egress(replace(policy, **more), names)


def url(site: Site, host: str = "site.test", path: str = "/") -> str:
    return f"http://{host}:{site.server.port}{path}"


SPECIAL = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200",
    "127.0.0.1", "127.255.255.254", "168.63.129.16", "169.254.169.254", "169.254.170.2",
    "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.1.1",
    "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.1.1.1",
    "240.0.0.1", "255.255.255.255",
    "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254",
    "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1", "2001::1",
    "2001:0:7f00:1::", "2001:db8::1", "2002:7f00:1::1", "2002:a9fe:a9fe::1", "3fff::1",
    "5f00::1", "fc00::1", "fd00:ec2::254", "fd12:3456::1", "fe80::1", "fec0::1", "ff02::1",
]  # fmt: skip

PUBLIC = [
    "1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.1", "172.15.255.255", "172.32.0.1",
    "192.167.255.255", "192.169.0.1", "198.17.255.255", "223.255.255.255", "2606:4700::1111",
    "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::808:808",
]  # fmt: skip


@pytest.mark.parametrize("text", SPECIAL)
def test_special_addresses_are_not_public(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", PUBLIC)
def test_ordinary_addresses_are_public(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_what_the_standard_library_calls_not_global_is_not_public(address: Address) -> None:
    """The registry moves on: nothing that either of the two knows as special passes."""
    embedded = address.version == 6 and (address.ipv4_mapped or str(address).startswith("64:ff9b:"))
    if is_public(address) and not embedded:
        assert address.is_global
        assert not address.is_multicast


@pytest.mark.parametrize("text", SPECIAL)
async def test_a_name_at_a_special_address_is_not_connected_to(text: str) -> None:
    names = Names(evil_test=[[text]])
    with pytest.raises(EgressRefused, match="not public") as refused:
        await Egress(EgressPolicy(), names).request("GET", "https://evil.test/")
    assert text not in str(refused.value)


async def test_one_special_address_among_public_ones_is_enough_to_refuse() -> None:
    for answer in (["8.8.8.8", "10.0.0.1"], ["::1", "2606:4700::1111"]):
        with pytest.raises(EgressRefused):
            await Egress(EgressPolicy(), Names(evil_test=[answer])).request(
                "GET", "https://evil.test/"
            )


ODD = [
    "http://2130706433/", "http://0x7f000001/", "http://0x7f.0.0.1/", "http://0177.0.0.1/",
    "http://127.1/", "http://127.0.1/", "http://0/", "http://017700000001/", "http://1.2.3.0x4/",
    "http://[::ffff:7f00:1]/", "http://[fe80::1%25eth0]/", "http://[::1%25lo]/", "http://[::1]/",
    "http://127.0.0.1/", "http://127.0.0.1./", "http://①②⑦.⓪.⓪.①/", "http://169.254.169.254/",
    "http://[::]/", "http://0.0.0.0/", "http://[::ffff:169.254.169.254]/", "http://[0:0:0:0::1]/",
]  # fmt: skip


@pytest.mark.parametrize("text", ODD)
async def test_no_spelling_of_an_address_gets_around_the_check(text: str) -> None:
    names = Names()
    with pytest.raises(EgressRefused):
        await Egress(EgressPolicy(), names).request("GET", text)
    assert names.asked == []


TRICKS = [
    "ftp://site.test/", "file:///etc/passwd", "gopher://site.test/", "data:text/plain,x", "//site/",
    "/path", "", "http://", "http:///path", "http://user@site.test/", "http://user:pw@site.test/",
    "http://:pw@site.test/", "http://@site.test/", "http://site.test@10.0.0.1/",
    "http://10.0.0.1\\@site.test/", "http://site.test\\.evil.test/", "http://site.test /",
    "http://site.test\t/", "http://site.test/\r\nx: y", "http://site.test/\0", " http://site.test/",
    "http://site.test:22/", "http://site.test:6379/", "http://site.test:99999/",
    "http://site.test:-1/", "http://site.test:0/", "http://[::1/", "http://a%00b/",
    "http://site%2etest/", "http://site.test:80:80/",
]  # fmt: skip


@pytest.mark.parametrize("text", TRICKS)
async def test_urls_that_are_none_or_hide_something_are_refused(text: str) -> None:
    names = Names(site_test=[["8.8.8.8"]])
    with pytest.raises(EgressRefused):
        await Egress(EgressPolicy(), names).request("GET", text)
    assert names.asked == []


async def test_an_answer_comes_back_whole(site: Site) -> None:
    names = Names(site_test=[["127.0.0.1"]])
    answer = await egress(site, names).request(
        "POST", url(site, path="/hook"), {"x-signature": "s"}, b"payload"
    )
    assert (answer.status, answer.body) == (200, b"hello")
    method, path, headers, body = site.seen[0]
    assert (method, path, body) == ("POST", "/hook", b"payload")
    assert headers["x-signature"] == "s"
    assert headers["host"] == f"site.test:{site.server.port}"


async def test_the_name_is_resolved_once_and_the_checked_address_is_used(site: Site) -> None:
    """DNS rebinding: public when it is checked, private when it is connected to."""
    names = Names(site_test=[["127.0.0.1"], ["10.0.0.1"]])
    answer = await egress(site, names).request("GET", url(site))
    assert answer.status == 200
    assert names.asked == ["site.test"]


async def test_a_redirect_to_the_same_name_is_resolved_and_checked_again(site: Site) -> None:
    names = Names(site_test=[["127.0.0.1"], ["10.0.0.1"]])
    with pytest.raises(EgressRefused, match="not public"):
        await egress(site, names).request("GET", url(site, path=f"/to?url={url(site)}"))
    assert len(site.seen) == 1


@pytest.mark.parametrize(
    "target",
    [
        "http://169.254.169.254:{port}/latest/meta-data/",
        "http://metadata.test:{port}/",
        "//metadata.test:{port}/",
        "http://[::1]:{port}/",
        "http://2852039166:{port}/",
        "http://site.test:1/",
        "http://user@site.test:{port}/",
        "ftp://site.test:{port}/",
        "file:///etc/passwd",
        "http://site.test:{port}\\@metadata.test/",
    ],
)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_gets_no_further_than_the_url_itself_would(
    site: Site, target: str, status: int
) -> None:
    names = Names(site_test=[["127.0.0.1"]], metadata_test=[["169.254.169.254"]])
    start = egress(site, names, allow_hosts=("metadata.test",))
    location = target.format(port=site.server.port).replace("\\", "%5C")
    with pytest.raises((EgressRefused, EgressFailed)):
        await start.request("GET", url(site, path=f"/to?status={status}&url={location}"))
    assert len(site.seen) == 1


async def test_redirects_end(site: Site) -> None:
    names = Names(site_test=[["127.0.0.1"]])
    loop = url(site, path="/to?url=/to%3Furl%3D/to")
    site_loop = egress(site, names, max_redirects=0)
    with pytest.raises(EgressFailed, match="redirects"):
        await site_loop.request("GET", loop)


async def test_another_origin_gets_neither_credentials_nor_the_body(site: Site) -> None:
    names = Names(site_test=[["127.0.0.1"]], other_test=[["127.0.0.1"]])
    target = url(site, "other.test")
    await egress(site, names).request(
        "POST",
        url(site, path=f"/to?url={target}"),
        {"authorization": "Bearer s", "x-signature": "s", "content-type": "text/plain"},
        b"payload",
    )
    method, _, headers, body = site.seen[1]
    assert (method, body) == ("GET", b"")
    assert "authorization" not in headers
    assert "x-signature" not in headers


@pytest.mark.parametrize("path", ["/large", "/bomb"])
async def test_an_answer_that_is_too_long_is_given_up(site: Site, path: str) -> None:
    names = Names(site_test=[["127.0.0.1"]])
    with pytest.raises(EgressFailed, match="longer"):
        await egress(site, names, max_bytes=1000).request("GET", url(site, path=path))


async def test_an_answer_that_does_not_come_is_given_up(site: Site) -> None:
    names = Names(site_test=[["127.0.0.1"]])
    with pytest.raises(EgressFailed, match="in time"):
        await egress(site, names, seconds=0.2).request("GET", url(site, path="/slow"))


async def test_a_name_that_does_not_resolve_is_a_failure() -> None:
    with pytest.raises(EgressFailed, match="resolve"):
        await Egress(EgressPolicy(), Names()).request("GET", "https://nowhere.test/")


async def test_proxies_of_the_environment_are_not_used(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    names = Names(site_test=[["127.0.0.1"]])
    assert (await egress(site, names).request("GET", url(site))).status == 200


async def test_an_operator_may_allow_internal_hosts_but_never_metadata() -> None:
    names = Names(hook_internal=[["127.0.0.2"]], meta_internal=[["169.254.169.254"]])
    policy = EgressPolicy(allow_hosts=("*.internal",), ports=frozenset({1}))
    with pytest.raises(EgressFailed):  # tried, and nobody is there
        await Egress(policy, names).request("GET", "http://hook.internal:1/")
    with pytest.raises(EgressRefused):
        await Egress(policy, names).request("GET", "http://meta.internal:1/")


@pytest.mark.parametrize("host", ["site.test.evil.test", "evil-site.test", "xsite.test", "test"])
async def test_only_listed_hosts_where_a_list_is_given(host: str) -> None:
    guarded = Egress(EgressPolicy(only_hosts=("site.test", "*.site.test")), Names())
    with pytest.raises(EgressRefused, match="not among"):
        await guarded.request("GET", f"https://{host}/")
    for fine in ("https://site.test/", "https://a.site.test/", "https://SITE.test./"):
        assert guarded.check(fine)


def test_plain_http_can_be_ruled_out() -> None:
    guarded = Egress(EgressPolicy(plain_http=False), Names())
    with pytest.raises(EgressRefused):
        guarded.check("http://site.test/")
    assert guarded.check("https://site.test/")


@pytest.mark.parametrize("text", ["169.254.169.254", "fd00:ec2::254", "100.100.100.200", "fe80::1"])
def test_metadata_services_are_known(text: str) -> None:
    assert is_metadata(ipaddress.ip_address(text))
    assert not is_metadata(ipaddress.ip_address("10.0.0.1"))


def test_names_are_no_numbers() -> None:
    names: Iterable[str] = ("site.test", "127.0.0.1.test", "0x7f.test", "a1")
    assert [numeric_host(name) for name in names] == [None] * 4
