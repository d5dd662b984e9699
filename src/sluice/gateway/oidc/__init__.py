"""People: signed in with an organisation's own identity provider by OpenID Connect."""
