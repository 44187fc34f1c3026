# syntax=docker/dockerfile:1
# Targets: `runtime` (GPU, the default, last) and `cpu`. Packages come from the hashed locks alone; compilers stay in the
# build stages. The container runs as a numeric user and writes nowhere but /tmp and /data, so its root can be read-only.

FROM python:3.11.14-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
RUN python -m venv /venv
WORKDIR /src
COPY pyproject.toml README.md ./
COPY service service
COPY training training

FROM build AS build-gpu
COPY deploy/locks/serve-gpu.txt lock.txt
RUN /venv/bin/pip install --no-deps --require-hashes -r lock.txt \
    && /venv/bin/pip install --no-deps --no-build-isolation --no-index .

# The CPU build of PyTorch lies in PyTorch's own wheel index: pass it as a build argument.
FROM build AS build-cpu
ARG PIP_EXTRA_INDEX_URL=""
ARG PIP_FIND_LINKS=""
COPY deploy/locks/serve-cpu.txt lock.txt
RUN /venv/bin/pip install --no-deps --require-hashes -r lock.txt \
    && /venv/bin/pip install --no-deps --no-build-isolation --no-index .

FROM python:3.11.14-slim-bookworm AS base
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    XDG_CACHE_HOME=/tmp/cache \
    VLLM_NO_USAGE_STATS=1 \
    OMP_WAIT_POLICY=passive
RUN install --directory --owner=10001 --group=10001 /data
WORKDIR /data
VOLUME ["/data"]
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=3s --start-period=180s --retries=4 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health/live', timeout=2)"]
ENTRYPOINT ["groundrec", "serve"]
CMD ["--checkpoint", "/data/checkpoint", "--host", "0.0.0.0", "--port", "8000"]

FROM base AS cpu
# vLLM's CPU kernels link against libnuma, which the slim image lacks.
USER 0:0
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libnuma1=2.0.16-1 \
    && rm -rf /var/lib/apt/lists/*
USER 10001:10001
COPY --from=build-cpu /venv /venv

FROM base AS runtime
COPY --from=build-gpu /venv /venv
