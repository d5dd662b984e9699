"""Prices: exact to the nano-USD."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.billing.prices import Price, nano_usd, usd
from sluice.wire.usage import Usage


def price(*usd_per_mtok: str | None) -> Price:
    given_ = [None if text is None else Decimal(text) for text in usd_per_mtok]
    return Price.of_usd(*given_)  # type: ignore[arg-type]


def test_case_80_written_tokens_are_charged_once() -> None:
    usage = Usage(input_tokens=3 + 12304, cache_write_tokens=12304, output_tokens=550)
    assert price("3", "15", None, "3.75").cost(usage) == 54_399_000


@pytest.mark.parametrize(
    ("usage", "nano"),
    [
        (Usage(), 0),
        (Usage(1), 3_000),
        (Usage(0, output_tokens=1), 15_000),
        (Usage(10, cached_input_tokens=10), 3_000),
        (Usage(10, cached_input_tokens=4), 19_200),
        (Usage(10, 4, 6), 1_200 + 22_500),
        (Usage(2, cached_input_tokens=5), 1_500),
        (Usage(1_000_000, output_tokens=1_000_000), 18_000_000_000),
    ],
)
def test_each_kind_of_token_has_its_price(usage: Usage, nano: int) -> None:
    assert price("3", "15", "0.3", "3.75").cost(usage) == nano


def test_cached_and_written_input_cost_what_input_costs_by_default() -> None:
    assert price("3", "15", None, None) == Price(3 * 10**9, 15 * 10**9, 3 * 10**9, 3 * 10**9)


def test_free_is_a_price_of_its_own() -> None:
    assert price("3", "15", "0", "0").cost(Usage(5, 3, 2)) == 0


@pytest.mark.parametrize(
    ("nano_per_mtok", "tokens", "nano"),
    [(1, 499_999, 0), (1, 500_000, 1), (1, 1_499_999, 1), (3, 500_000, 2), (1, 10**6, 1)],
)
def test_a_cost_is_rounded_half_up(nano_per_mtok: int, tokens: int, nano: int) -> None:
    assert Price(input=nano_per_mtok).cost(Usage(tokens)) == nano


def test_the_parts_are_rounded_together_not_each() -> None:
    assert Price(1, 1, 1, 1).cost(Usage(750_000, 250_000, 250_000, 250_000)) == 1


rates = st.builds(Price, *[st.integers(min_value=0, max_value=10**12)] * 4)
counts = st.integers(min_value=0, max_value=10**9)
usages = st.builds(Usage, counts, counts, counts, counts)


def ordinary(usage: Usage) -> Usage:
    """The same where all prompt tokens include the cached and written ones, as they should."""
    parts = usage.cached_input_tokens + usage.cache_write_tokens
    return Usage(
        usage.input_tokens + parts,
        usage.cached_input_tokens,
        usage.cache_write_tokens,
        usage.output_tokens,
    )


@settings(deadline=None)
@given(rate=rates, first=usages.map(ordinary), second=usages.map(ordinary))
def test_costs_add_up_but_for_rounding(rate: Price, first: Usage, second: Usage) -> None:
    both = Usage(
        first.input_tokens + second.input_tokens,
        first.cached_input_tokens + second.cached_input_tokens,
        first.cache_write_tokens + second.cache_write_tokens,
        first.output_tokens + second.output_tokens,
    )
    assert abs(rate.cost(both) - rate.cost(first) - rate.cost(second)) <= 1


@settings(deadline=None)
@given(rate=rates, usage=usages)
def test_no_usage_however_odd_costs_less_than_nothing(rate: Price, usage: Usage) -> None:
    assert rate.cost(usage) >= 0


@pytest.mark.parametrize(
    ("text", "nano"),
    [("0", 0), ("0.000000001", 1), ("2.50", 2_500_000_000), ("1E+3", 10**12), ("-0", 0)],
)
def test_usd_become_nano_usd_exactly(text: str, nano: int) -> None:
    assert nano_usd(Decimal(text)) == nano


@pytest.mark.parametrize(
    "text",
    [
        "-1",
        "-0.000000001",
        "0.0000000001",
        "0.1234567891",
        "1E-30",
        "NaN",
        "sNaN",
        "Infinity",
        "-Infinity",
        "1.0000000000000000000000000000000000001",
    ],
)
def test_anything_finer_or_below_zero_is_no_price(text: str) -> None:
    with pytest.raises(ValueError, match="zero or more"):
        nano_usd(Decimal(text))


@given(nano=st.integers(min_value=0, max_value=10**15))
def test_shown_usd_are_exact_up_to_a_million(nano: int) -> None:
    assert round(Decimal(repr(usd(nano))) * 10**9) == nano


def test_batch_requests_cost_their_share_rounded_once() -> None:
    half = price("3", "15", None, None, "0.5")
    assert half.cost(Usage(10, output_tokens=3), batch=True) == (30_000 + 45_000) // 2
    assert half.cost(Usage(10, output_tokens=3)) == 75_000
    assert Price(input=3 * 10**6, batch_share=half.batch_share).cost(Usage(1), batch=True) == 2


@pytest.mark.parametrize("share", ["-0.1", "1.1"])
def test_a_batch_share_is_a_part(share: str) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        price("3", "15", None, None, share)


@given(
    plain=st.tuples(*[st.integers(min_value=0, max_value=10**40)] * 4),
    share=st.decimals(min_value=0, max_value=1, places=28),
)
def test_a_price_travels_as_it_is(plain: tuple[int, int, int, int], share: Decimal) -> None:
    sent = Price(*plain, Fraction(share))
    assert Price.of_text(sent.text) == sent


@pytest.mark.parametrize("text", ["", "1 2 3 4 5 6", "1 2 3 4 x", "1 2 3 4 1/0", "1 2 3.5 4 1"])
def test_what_is_no_price_is_not_read_as_one(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - which of them says it is no matter
        Price.of_text(text)
