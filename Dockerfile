# The daemon as a container image (docs/install.md):
#   docker build --build-arg COMMIT=$(git rev-parse --short HEAD) --tag refold .
FROM python:3.12-slim-bookworm AS build
# Debian keeps no earlier versions that could be pinned.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
ARG COMMIT=""
RUN python -m venv /opt/refold \
    && python -c "from tools.install import locked_requirements; print(locked_requirements(['refold', 'report', 'serve']))" > /tmp/locked.txt \
    && /opt/refold/bin/pip install --no-cache-dir --no-deps --require-hashes --requirement /tmp/locked.txt \
    && REFOLD_COMMIT="$COMMIT" /opt/refold/bin/pip install --no-cache-dir --no-deps . \
    && /opt/refold/bin/refold simulate demo --limit 50

FROM python:3.12-slim-bookworm
RUN useradd --uid 1000 --create-home refold && install --directory --owner refold --mode 700 /state
COPY --from=build /opt/refold /opt/refold
ENV PATH=/opt/refold/bin:$PATH \
    REFOLD_HOME=/state/refold
USER 1000
WORKDIR /state
VOLUME /state
EXPOSE 7170
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:7170/healthz', timeout=3)"]
CMD ["refold", "serve", "--host", "0.0.0.0"]
