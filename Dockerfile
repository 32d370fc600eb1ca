# syntax=docker/dockerfile:1
# kvring as a container: dependencies locked by hash, no compiler, not root, fit for a read-only root.
#   docker build -t kvring .
# Pin the base by digest where you build for production: --build-arg PYTHON=python:3.13-slim-bookworm@sha256:...
ARG PYTHON=python:3.13-slim-bookworm

FROM ${PYTHON} AS build
# Byte code now, or each start of a read-only container compiles anew. Links can't leave the stage: copy.
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_NO_CACHE=1
WORKDIR /src
# The dependencies first: this layer stays while only kvring changes.
COPY requirements-build.lock requirements.lock ./
RUN pip install --no-cache-dir --require-hashes -r requirements-build.lock \
 && uv venv /opt/kvring \
 && uv pip install --python /opt/kvring --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY extproc extproc
RUN python -m hatchling build -t wheel -d /src/dist \
 && uv pip install --python /opt/kvring --no-deps /src/dist/*.whl \
 && /opt/kvring/bin/kvring --version

FROM ${PYTHON}
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="kvring" \
      org.opencontainers.image.description="Sends each LLM request to the replica that already holds its prompt's KV cache" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/kvring /opt/kvring
ENV PATH=/opt/kvring/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# A number, so that runAsNonRoot can be checked without /etc/passwd.
USER 65532:65532
# ext_proc, gRPC health, metrics
EXPOSE 9002 9003 9090
# Kubernetes asks by itself; this is for Docker.
HEALTHCHECK --interval=5s --timeout=3s --start-period=15s CMD ["kvring", "probe", "--timeout-s=2"]
# Exec form: SIGTERM reaches kvring, which drains.
ENTRYPOINT ["kvring"]
CMD ["serve", "--config=/etc/kvring/kvring.yaml"]
