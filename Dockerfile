# syntax=docker/dockerfile:1

FROM python:3.11-slim AS build
# For the scorer, which a build without a compiler leaves in Python.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && python -m venv /app
WORKDIR /src
COPY requirements/runtime.txt requirements/
COPY pyproject.toml setup.py README.md LICENSE ./
COPY src src
RUN --mount=type=cache,target=/root/.cache/pip \
    /app/bin/pip install --constraint requirements/runtime.txt . \
    && /app/bin/pip check \
    && /app/bin/python -c "import sluice.router.auto._native"

FROM python:3.11-slim
# A new named volume takes over its directory with its owner, so that both are writable without root.
RUN groupadd --system --gid 10001 sluice \
    && useradd --system --uid 10001 --gid sluice --home-dir /var/lib/sluice --no-create-home sluice \
    && install --directory --owner sluice --group sluice /var/lib/sluice /var/lib/sluice/spool \
        /var/lib/sluice/files
COPY --from=build /app /app
ENV PATH=/app/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    SLUICE_SPOOL_DIR=/var/lib/sluice/spool \
    SLUICE_FILES_DIR=/var/lib/sluice/files
WORKDIR /var/lib/sluice
USER sluice
EXPOSE 8080
STOPSIGNAL SIGTERM
# Speaks for `serve`; the other commands open no port and switch it off.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health/live', timeout=2)"]
ENTRYPOINT ["sluice"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8080"]
