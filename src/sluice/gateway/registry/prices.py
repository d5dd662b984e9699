"""Prices that change while requests are in progress."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sluice.billing.prices import Price


class PriceBook(Mapping[str, Price]):
    """Prices by model name.

    A model that is gone keeps its last price: requests that it is still answering are charged.
    """

    def __init__(self, prices: Mapping[str, Price]) -> None:
        self._prices = dict(prices)

    def update(self, prices: Mapping[str, Price]) -> None:
        """From now on these models cost this."""
        self._prices = {**self._prices, **prices}

    def __getitem__(self, model: str) -> Price:
        return self._prices[model]

    def __iter__(self) -> Iterator[str]:
        return iter(self._prices)

    def __len__(self) -> int:
        return len(self._prices)
