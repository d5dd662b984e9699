"""Why an embedded server can't be used."""


class EmbeddedServerError(RuntimeError):
    """An embedded server cannot be used here; the message says what to do about it."""


class DataDirInUseError(EmbeddedServerError):
    """Another running server has the data directory."""
