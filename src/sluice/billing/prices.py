"""Prices and what a request costs by them. Money is integers, in nano-USD."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from sluice.wire.usage import Usage

NANO = 1_000_000_000
_MTOK = 1_000_000

#: Powers of ten beyond which no amount of money lies. Text such as `1E+999999999` is short, and
#: its integer is not.
_MAGNITUDE = 30


@dataclass(frozen=True, slots=True)
class Price:
    """Prices of one model, in nano-USD per million tokens.

    Attributes:
        input: prompt tokens.
        output: generated tokens.
        cached_input: prompt tokens read from a cache.
        cache_write: prompt tokens written to a cache.
        batch_share: part of all these that a request of the batch tier costs.
        text: the price as it travels: the attributes above in their order, exact however large.
    """

    input: int = 0
    output: int = 0
    cached_input: int = 0
    cache_write: int = 0
    batch_share: Fraction = Fraction(1)
    text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        figures = self.input, self.output, self.cached_input, self.cache_write, self.batch_share
        object.__setattr__(self, "text", " ".join(map(str, figures)))

    @classmethod
    def of_usd(
        cls,
        input_per_mtok: Decimal,
        output_per_mtok: Decimal,
        cached_input_per_mtok: Decimal | None = None,
        cache_write_per_mtok: Decimal | None = None,
        batch_share: Decimal | None = None,
    ) -> Price:
        """From USD per million tokens; cached and written input cost what input costs unless
        they have a price of their own, and batch requests what interactive ones cost.

        Raises:
            ValueError: a price is negative or finer than a nano-USD per million tokens, or the
                share is not between 0 and 1.
        """
        if batch_share is not None and not 0 <= batch_share <= 1:
            raise ValueError(f"{batch_share} must be between 0 and 1")
        return cls(
            input=nano_usd(input_per_mtok),
            output=nano_usd(output_per_mtok),
            cached_input=nano_usd(_first(cached_input_per_mtok, input_per_mtok)),
            cache_write=nano_usd(_first(cache_write_per_mtok, input_per_mtok)),
            batch_share=Fraction(1) if batch_share is None else Fraction(batch_share),
        )

    @classmethod
    @lru_cache  # few prices, and many requests
    def of_text(cls, text: str) -> Price:
        """The price that has this `text`.

        Raises:
            ValueError: no price has it.
        """
        read, generated, cached, written, share = text.split()
        try:
            return cls(int(read), int(generated), int(cached), int(written), Fraction(share))
        except ZeroDivisionError:
            raise ValueError(f"{share} is no share") from None

    def cost(self, usage: Usage, *, batch: bool = False) -> int:
        """Nano-USD for a usage, rounded once, half up.

        `input_tokens` includes the cached and the written ones; each token is charged once.

        Args:
            batch: it is of the batch tier.
        """
        plain = usage.input_tokens - usage.cached_input_tokens - usage.cache_write_tokens
        total = (
            max(plain, 0) * self.input
            + usage.cached_input_tokens * self.cached_input
            + usage.cache_write_tokens * self.cache_write
            + usage.output_tokens * self.output
        )
        if not batch:
            return (2 * total + _MTOK) // (2 * _MTOK)
        unit = _MTOK * self.batch_share.denominator
        return (2 * total * self.batch_share.numerator + unit) // (2 * unit)


#: Of a model without a price.
FREE = Price()


def nano_usd(usd: Decimal) -> int:
    """USD as nano-USD.

    Raises:
        ValueError: negative, or finer than a nano-USD.
    """
    nano = Fraction(usd) * NANO if usd.is_finite() and abs(usd.adjusted()) < _MAGNITUDE else None
    if nano is None or nano < 0 or nano.denominator != 1:
        raise ValueError(f"{usd} must be zero or more, with at most 9 decimals")
    return int(nano)


def usd(nano: int) -> float:
    """Nano-USD as USD, for people; its shortest decimal form is exact up to a million USD."""
    return nano / NANO


def _first(value: Decimal | None, default: Decimal) -> Decimal:
    return default if value is None else value
