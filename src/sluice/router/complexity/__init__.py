"""How much a request needs a strong model: a score from the request itself, under a millisecond."""
