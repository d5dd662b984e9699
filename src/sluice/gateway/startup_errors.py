"""What keeps a command from its work; each says what it is in words for people.

They are apart from those that raise them, so that a command imports no more than it needs.
"""


class ConfigError(Exception):
    """The configuration can't be used; the message says what is wrong, and where."""


class CommandError(Exception):
    """A command can't do its work; the message says why."""


class PortTaken(Exception):
    """The address can't be listened on; the message says which and why."""
