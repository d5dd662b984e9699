"""`sluice login`: people sign in for the commands that administer."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable
from datetime import UTC, datetime

import click

from sluice.gateway.cli.running import run
from sluice.gateway.environment import Environment
from sluice.gateway.oidc.cli_login import LoginError, log_in
from sluice.gateway.oidc.token_file import TokenFileError, save_token
from sluice.gateway.startup_errors import CommandError


@click.command()
@click.option("--no-browser", is_flag=True, help="Print the page's address only.")
def login(no_browser: bool) -> None:
    """Sign in at SLUICE_URL with the organisation's identity provider.

    The commands that administer use the token, where SLUICE_ADMIN_KEY is not set.
    """
    expires_at = run(_log_in(click.echo if no_browser else _open_page))
    click.echo(f"signed in until {datetime.fromtimestamp(expires_at, UTC).isoformat()}")


def _open_page(url: str) -> None:
    click.echo(f"Opening {url}")
    webbrowser.open(url)


async def _log_in(show: Callable[[str], object]) -> float:
    """Sign in, and keep the token; give when it expires.

    Raises:
        CommandError: nobody was signed in, or the token can't be kept.
    """
    environment = Environment.read()
    try:
        token = await log_in(environment.url, show)
        save_token(environment.token_file, environment.url, token)
    except (LoginError, TokenFileError) as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(f"can't write {environment.token_file}: {error.strerror}") from None
    return token.expires_at
