"""A scorer's model as a value, and as a file.

The file is one line of JSON, the header, and then the table of the words' weights: float32,
little-endian, compressed by zlib. Its name is its SHA-256.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite

import msgspec

from sluice.router.complexity import features
from sluice.router.complexity.signals import SIGNALS

_FORMAT = "sluice-router-linear"
_VERSION = 1
_TABLE_BYTES = 4 * features.BUCKETS
_LONGEST_HEADER = 65_536
#: Larger figures mean nothing, and could come to infinity, from which no score follows.
_LARGEST = 1e9


class InvalidModel(ValueError):
    """The bytes are no model file, of a version that isn't known, or damaged."""


@dataclass(frozen=True, slots=True)
class Model:
    """A linear model of a request's benefit by a strong model.

    Benefit = bias + sum(weight * signal) + sum(table[word]) / sqrt(number of words). The rule
    is one without a table.

    Attributes:
        bias: in units of the outcome.
        signals: a weight for each of `SIGNALS`.
        usual: mean of each signal where the model was calibrated; reasons tell the distance.
        usual_wording: mean of what the words come to.
        centre: mean of the benefit, where the score is one half.
        scale: its standard deviation.
        quantiles: 101 scores, ascending, see `Scorer.quantiles`.
        table: a weight for each hashed word; empty: words don't count.
        labels: requests that it was fitted on.
    """

    bias: float
    signals: tuple[float, ...]
    usual: tuple[float, ...]
    usual_wording: float
    centre: float
    scale: float
    quantiles: tuple[float, ...]
    table: array[float]
    labels: int = 0


class _Header(msgspec.Struct):
    format: str
    version: int
    features: int
    signals: dict[str, float]
    usual: dict[str, float]
    bias: float
    usual_wording: float
    centre: float
    scale: float
    quantiles: list[float]
    labels: int


def pack(model: Model) -> bytes:
    """The model's file; the same model gives the same bytes."""
    header = _Header(
        format=_FORMAT,
        version=_VERSION,
        features=features.VERSION,
        signals=dict(zip(SIGNALS, model.signals, strict=True)),
        usual=dict(zip(SIGNALS, model.usual, strict=True)),
        bias=model.bias,
        usual_wording=model.usual_wording,
        centre=model.centre,
        scale=model.scale,
        quantiles=list(model.quantiles),
        labels=model.labels,
    )
    table = zlib.compress(_little_endian(array("f", model.table)).tobytes(), 6)
    return msgspec.json.encode(header) + b"\n" + table


def unpack(data: bytes) -> Model:
    """The model of a file.

    Raises:
        InvalidModel: it is none, of another version, or damaged.
    """
    end = data.find(b"\n", 0, _LONGEST_HEADER)
    try:
        header = msgspec.json.decode(data[: max(end, 0)], type=_Header)
    except msgspec.DecodeError:
        raise InvalidModel("this is no router model") from None
    if (header.format, header.version, header.features) != (_FORMAT, _VERSION, features.VERSION):
        raise InvalidModel(
            f"router model of another version: {header.version}, features {header.features}; "
            f"{_VERSION}, features {features.VERSION} is read. Train it anew"
        )
    model = _model(header, _table(data[end + 1 :]))
    figures = (model.bias, model.usual_wording, model.centre, *model.signals, *model.usual)
    if max(map(abs, figures)) > _LARGEST or not 1 / _LARGEST < model.scale < _LARGEST:
        raise InvalidModel("the router model holds a figure that is too large, or too small")
    if len(model.quantiles) != 101 or list(model.quantiles) != sorted(model.quantiles):
        raise InvalidModel("the router model's quantiles aren't 101 ascending scores")
    return model


def fingerprint(data: bytes) -> str:
    """SHA-256 of a model file, in hex."""
    return sha256(data).hexdigest()


def _model(header: _Header, table: array[float]) -> Model:
    if set(header.signals) != set(SIGNALS) or set(header.usual) != set(SIGNALS):
        raise InvalidModel("the router model has other signals")
    return Model(
        bias=header.bias,
        signals=tuple(header.signals[name] for name in SIGNALS),
        usual=tuple(header.usual[name] for name in SIGNALS),
        usual_wording=header.usual_wording,
        centre=header.centre,
        scale=header.scale,
        quantiles=tuple(header.quantiles),
        table=table,
        labels=header.labels,
    )


def _table(compressed: bytes) -> array[float]:
    reader = zlib.decompressobj()
    try:
        data = reader.decompress(compressed, _TABLE_BYTES + 1)
    except zlib.error:
        raise InvalidModel("the router model's table is damaged") from None
    if len(data) != _TABLE_BYTES or not reader.eof:
        raise InvalidModel("the router model's table is damaged")
    table = array("f")
    table.frombytes(data)
    _little_endian(table)
    if not all(map(isfinite, table)):
        raise InvalidModel("the router model holds a figure that is none")
    return table


def _little_endian(table: array[float]) -> array[float]:
    if sys.byteorder == "big":
        table.byteswap()
    return table
