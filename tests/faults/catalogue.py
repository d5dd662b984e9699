"""The faults, and what the caller must hear of each."""

from __future__ import annotations

from dataclasses import dataclass

from tests.faults import speech
from tests.faults.models import BUDGET
from tests.harness.upstream import Script


@dataclass(frozen=True)
class Early:
    """A fault before the first token.

    Attributes:
        status: of the caller's response, in OpenAI's terms.
        code: of the caller's error, in OpenAI's terms.
        kind: of the caller's error, in Anthropic's terms.
        reason: what `x-attempts` says of each call.
        attempts: upstream calls.
        streams: True: only streams have it; False: only whole answers do.
    """

    name: str
    script: Script | None
    status: int
    code: str | None
    kind: str
    reason: str
    attempts: int = BUDGET
    streams: bool | None = None


@dataclass(frozen=True)
class Late:
    """A fault after the first token.

    Attributes:
        code: the record's error code; None: the upstream's own word.
    """

    name: str
    script: Script
    code: str | None


_LOST = "upstream_connection_lost"
_INVALID = "upstream_invalid_response"
_TIMEOUT = "upstream_timeout"
_refusing = speech.refusing

# fmt: off
EARLY = [
    Early("refused", None, 502, "upstream_unreachable", "api_error", "upstream_unreachable"),
    Early("reset", speech.reset, 502, _LOST, "api_error", _LOST),
    Early("closed", lambda call: call.close(), 502, _LOST, "api_error", _LOST),
    Early("not-http", speech.not_http, 502, _LOST, "api_error", _LOST),
    Early("stall", speech.stall, 504, _TIMEOUT, "timeout_error", _TIMEOUT, 1),
    Early("slow-headers", speech.drip_headers, 504, _TIMEOUT, "timeout_error", _TIMEOUT, 1),
    Early("slow-body", speech.drip_body, 504, _TIMEOUT, "timeout_error", _TIMEOUT, 1),
    Early("400", _refusing(400), 400, None, "invalid_request_error", "http_400", 1),
    Early("401", _refusing(401), 502, "upstream_credential_refused", "api_error", "http_401"),
    Early("403", _refusing(403, kind="permission_error"), 502, "upstream_credential_refused",
          "api_error", "http_403"),
    Early("404", _refusing(404), 404, None, "not_found_error", "http_404", 1),
    Early("429", _refusing(429), 429, "rate_limit_exceeded", "rate_limit_error", "http_429"),
    Early("500", _refusing(500), 502, "upstream_error", "api_error", "http_500"),
    Early("503", _refusing(503), 503, "server_is_overloaded", "overloaded_error", "http_503"),
    Early("504", _refusing(504), 504, _TIMEOUT, "timeout_error", "http_504"),
    Early("529", _refusing(529, kind="overloaded_error"), 503, "server_is_overloaded",
          "overloaded_error", "http_529"),
    Early("redirect", lambda call: call.respond(302, b"", {"location": "http://127.0.0.1:1/"}),
          502, "upstream_error", "api_error", "http_302", 1),
    Early("html-502", lambda call: call.respond(502, b"<html>", content_type="text/html"),
          502, "upstream_error", "api_error", "http_502"),
    Early("html-200", lambda call: call.respond(200, b"<html>", content_type="text/html"),
          502, _INVALID, "api_error", _INVALID),
    Early("empty-200", lambda call: call.respond(200, b""), 502, _INVALID, "api_error", _INVALID),
    Early("error-in-200", lambda call: call.respond(200, speech.error_body(call, "no")),
          502, "upstream_error", "api_error", "upstream_error"),
    Early("cut-body", speech.cut_body, 502, _LOST, "api_error", _LOST),
    Early("cut-json", lambda call: call.respond(200, b'{"id":"x","choices":[{"ind'),
          502, _INVALID, "api_error", _INVALID),
    Early("bad-utf8", speech.bad_utf8_body, 502, _INVALID, "api_error", _INVALID),
    Early("reset-after-role", speech.before_words(speech.reset), 502, _LOST, "api_error", _LOST,
          streams=True),
    Early("end-after-role", speech.before_words(lambda call: call.end()), 502, _LOST, "api_error",
          _LOST, streams=True),
    Early("done-after-role", speech.before_words(speech.say_done), 502, _LOST, "api_error", _LOST,
          streams=True),
    Early("garbage-after-role", speech.before_words(speech.say_garbage), 502, _INVALID,
          "api_error", _INVALID, streams=True),
    Early("bad-utf8-after-role", speech.before_words(speech.say_bad_utf8), 502, _INVALID,
          "api_error", _INVALID, streams=True),
    Early("error-after-role", speech.before_words(speech.say_error), 503, "server_is_overloaded",
          "overloaded_error", "upstream_error", streams=True),
    Early("stall-after-role", speech.before_words(speech.stall), 504, _TIMEOUT, "timeout_error",
          _TIMEOUT, 1, streams=True),
]

LATE = [
    Late("reset", speech.after_words(speech.reset), _LOST),
    Late("close", speech.after_words(lambda call: call.close()), _LOST),
    Late("end", speech.after_words(lambda call: call.end()), _LOST),
    Late("end-marker", speech.after_words(speech.say_done), _LOST),
    Late("cut-event", speech.after_words(speech.stop_chunk_then_reset), _LOST),
    # aiohttp closes the connection and tells no one: the limit between tokens ends the stream
    Late("bad-chunk", speech.after_words(speech.say_bad_chunk), _TIMEOUT),
    Late("garbage", speech.after_words(speech.say_garbage), _INVALID),
    Late("bad-utf8", speech.after_words(speech.say_bad_utf8), _INVALID),
    Late("error", speech.after_words(speech.say_error), None),
    Late("stall", speech.after_words(speech.stall), _TIMEOUT),
    Late("slow-loris", speech.after_words(speech.drip), _TIMEOUT),
]
# fmt: on
