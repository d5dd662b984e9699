"""An identity provider that issues whatever a test wants, honest or forged."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

CLIENT = "sluice-client"
AUDIENCE = "sluice-api"


@cache
def _keys() -> dict[str, Any]:
    """One key of each kind, the same for all issuers of a test run: they take a while to make."""
    return {
        "rsa": rsa.generate_private_key(public_exponent=65537, key_size=2048),
        "ec": ec.generate_private_key(ec.SECP256R1()),
        "ed": ed25519.Ed25519PrivateKey.generate(),
    }


class Issuer:
    """Listens on a port of its own.

    Attributes:
        codes: what an authorization code is redeemed for: the ID token's claims, and the code
            challenge that it was given out for.
        asked: how often each path was fetched.
        down: answers 500 to everything.
    """

    def __init__(self) -> None:
        self.keys = _keys()
        self.published = ["rsa", "ec", "ed"]
        self.codes: dict[str, tuple[dict[str, Any], str]] = {}
        self.asked: dict[str, int] = {}
        self.forms: list[dict[str, str]] = []
        self.down = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def claims(self, **more: Any) -> dict[str, Any]:
        """Claims of an honest ID token; None takes one out."""
        now = int(time.time())
        honest = {
            "iss": self.url,
            "aud": CLIENT,
            "sub": "subject-1",
            "name": "Ada",
            "groups": ["owners"],
            "iat": now,
            "exp": now + 300,
        }
        return {name: value for name, value in {**honest, **more}.items() if value is not None}

    def token(self, key: str = "rsa", header: dict[str, Any] | None = None, **more: Any) -> str:
        """A token, signed by one of the keys."""
        algorithm = {"rsa": "RS256", "ec": "ES256", "ed": "EdDSA"}[key]
        return jwt.encode(
            self.claims(**more), self.keys[key], algorithm, {"kid": key, **(header or {})}
        )

    def key_set(self) -> dict[str, Any]:
        """The JWKS document."""
        kinds: dict[str, Any] = {"rsa": RSAAlgorithm, "ec": ECAlgorithm, "ed": OKPAlgorithm}
        entries = []
        for name in self.published:
            text = kinds[name].to_jwk(self.keys[name].public_key())
            entries.append({**json.loads(text), "kid": name, "use": "sig"})
        return {"keys": entries}

    def metadata(self) -> dict[str, Any]:
        """The discovery document."""
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/jwks",
        }

    def redeem(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """The token endpoint: a code is good once, and with its verifier only."""
        self.forms.append(form)
        claims, challenge = self.codes.pop(form["code"], ({}, ""))
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != challenge:
            return 400, {"error": "invalid_grant"}
        token = claims.get("token") or jwt.encode(claims, self.keys["rsa"], "RS256", {"kid": "rsa"})
        return 200, {"access_token": "opaque", "token_type": "Bearer", "id_token": token}


def _handler(issuer: Issuer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.asked[self.path] = issuer.asked.get(self.path, 0) + 1
            match self.path:
                case "/.well-known/openid-configuration":
                    self._answer(200, issuer.metadata())
                case "/jwks":
                    self._answer(200, issuer.key_set())
                case _:
                    self._answer(404, {})

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["content-length"])).decode()
            form = {name: values[0] for name, values in parse_qs(text).items()}
            basic = self.headers.get("authorization")
            self._answer(*issuer.redeem({**form, **({"basic": basic} if basic else {})}))

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def _answer(self, status: int, body: dict[str, Any]) -> None:
            text = json.dumps(body).encode()
            self.send_response(500 if issuer.down else status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    return Handler
