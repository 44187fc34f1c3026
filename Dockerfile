# syntax=docker/dockerfile:1
# Targets: `cpu`, `gpu-jit` and `runtime` (GPU, the default, last). Packages come from the hashed locks alone; compilers
# stay in the build stages. The container runs as a numeric user and writes nowhere but /tmp (and /dev/shm), so its root
# can be read-only. deploy/reproduce-image.sh runs these steps without Docker and starts the service from the result.

# Give a digest for a build that never changes: --build-arg PYTHON_IMAGE=python@sha256:...
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /venv
WORKDIR /src

FROM build AS build-gpu
COPY deploy/locks/serve-gpu.txt lock.txt
RUN /venv/bin/python -m pip install --no-deps --require-hashes -r lock.txt
COPY pyproject.toml README.md ./
COPY service service
RUN /venv/bin/python -m pip install --no-deps --no-build-isolation --no-index . \
    && /venv/bin/python -m pip uninstall --yes pip

# The CPU build of PyTorch lies in PyTorch's own wheel index: pass it as a build argument.
FROM build AS build-cpu
ARG PIP_EXTRA_INDEX_URL=""
ARG PIP_FIND_LINKS=""
COPY deploy/locks/serve-cpu.txt lock.txt
RUN /venv/bin/python -m pip install --no-deps --require-hashes -r lock.txt
COPY pyproject.toml README.md ./
COPY service service
RUN /venv/bin/python -m pip install --no-deps --no-build-isolation --no-index . \
    && /venv/bin/python -m pip uninstall --yes pip

FROM ${PYTHON_IMAGE} AS base
# Caches go to /tmp; LOGNAME, because a numeric user has no name that torch could ask for; offline, because a servable
# checkpoint is whole and the hub is never asked.
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    LOGNAME=groundrec \
    XDG_CACHE_HOME=/tmp/cache \
    TORCHINDUCTOR_CACHE_DIR=/tmp/cache/inductor \
    TRITON_CACHE_DIR=/tmp/cache/triton \
    HF_HUB_OFFLINE=1 \
    VLLM_NO_USAGE_STATS=1 \
    OMP_WAIT_POLICY=passive \
    GROUNDREC_CHECKPOINT=/data/checkpoint \
    GROUNDREC_HOST=0.0.0.0 \
    GROUNDREC_PORT=8000
WORKDIR /data
VOLUME ["/tmp"]
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
# Liveness, not readiness: an engine that is lost ends the process by itself.
HEALTHCHECK --interval=15s --timeout=3s --start-period=300s --retries=4 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['GROUNDREC_PORT'] + '/health/live', timeout=2)"]
ENTRYPOINT ["groundrec"]
CMD ["serve"]

FROM base AS cpu
# vLLM's CPU kernels link against libnuma, which the slim image lacks.
USER 0:0
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libnuma1=2.0.16-1 \
    && rm -rf /var/lib/apt/lists/*
USER 10001:10001
COPY --from=build-cpu /venv /venv

# With a C compiler, for GPUs whose Triton kernels are not in the cache yet: Triton compiles their launchers at first use.
FROM base AS gpu-jit
USER 0:0
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc=4:12.2.0-3 libc6-dev=2.36-9+deb12u14 \
    && rm -rf /var/lib/apt/lists/*
USER 10001:10001
COPY --from=build-gpu /venv /venv

FROM base AS runtime
COPY --from=build-gpu /venv /venv
