"""What may be said of a batch beside its requests, as it comes in bodies, forms and queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from sluice.gateway.batch.completion_window import read_window
from sluice.gateway.batch.lines import URLS
from sluice.gateway.batch.submissions import Wishes
from sluice.gateway.errors import GatewayError
from sluice.gateway.routes.admin.bodies import invalid
from sluice.gateway.tenancy.limits import Priority

_NO_NUL = r"^[^\x00]*$(?!\n)"
_Name = Annotated[str, msgspec.Meta(max_length=64, pattern=_NO_NUL)]
_Value = Annotated[str, msgspec.Meta(max_length=512, pattern=_NO_NUL)]
Metadata = Annotated[dict[_Name, _Value], msgspec.Meta(max_length=16)]


class OutputExpiry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long the files of the outcome are kept, from when they are made."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, msgspec.Meta(ge=3600, le=2_592_000)]


class BatchOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """See the module.

    Attributes:
        endpoint: the `url` of the requests; None: as they say.
        completion_window: `24h`, or less.
        callback_url: is told when the batch has ended.
    """

    endpoint: str | None = None
    completion_window: str = "24h"
    priority: Priority = "normal"
    metadata: Metadata | None = None
    output_expires_after: OutputExpiry | None = None
    callback_url: Annotated[str, msgspec.Meta(max_length=2048)] | None = None

    def wishes(self) -> Wishes:
        """The same, checked.

        Raises:
            GatewayError: 400, with the parameter named.
        """
        window = read_window(self.completion_window)
        if window is None:
            raise GatewayError.invalid(
                "`completion_window` must be `24h`, or less: from `60s` or `1m` on.",
                "completion_window",
                "invalid_value",
            )
        if self.endpoint is not None and self.endpoint not in URLS:
            known = ", ".join(f"`{each}`" for each in URLS)
            raise GatewayError.invalid(
                f"`endpoint` must be one of {known}.", "endpoint", "invalid_value"
            )
        expiry = self.output_expires_after
        return Wishes(
            completion_window=window,
            endpoint=None if self.endpoint is None else URLS[self.endpoint],
            priority=self.priority,
            metadata=self.metadata,
            output_expires_seconds=None if expiry is None else expiry.seconds,
            callback_url=self.callback_url,
        )


class FileBatch(BatchOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A batch of a file that was uploaded before: the body of OpenAI's `POST /v1/batches`."""

    input_file_id: str
    endpoint: str
    completion_window: str


class ListedBatch(BatchOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A batch whose requests come with it, as a list."""

    requests: list[msgspec.Raw]


def _json(text: str, param: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise GatewayError.invalid(f"`{param}` must be JSON.", param, "invalid_json") from None


def options_of(fields: Mapping[str, str]) -> BatchOptions:
    """Options that came as text, in a form or a query; `metadata` and `output_expires_after` are
    JSON.

    Raises:
        GatewayError: 400, with the parameter named.
    """
    values: dict[str, Any] = dict(fields)
    try:
        for name in ("metadata", "output_expires_after"):
            if name in values:
                values[name] = _json(values[name], name)
        return msgspec.convert(values, BatchOptions)
    except msgspec.DecodeError as error:
        raise invalid(error) from None
