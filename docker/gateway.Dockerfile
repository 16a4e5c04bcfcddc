# syntax=docker/dockerfile:1
# The gateway: no torch in it. Build from the repository's root:
#   docker build -f docker/gateway.Dockerfile -t forerun/gateway:0.1.0 .
ARG PYTHON=3.11
FROM python:${PYTHON}-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/forerun
WORKDIR /src
COPY . .
RUN /opt/forerun/bin/pip install '.[gateway]'

FROM python:${PYTHON}-slim-bookworm
COPY --from=build /opt/forerun /opt/forerun
ENV PATH=/opt/forerun/bin:$PATH PYTHONUNBUFFERED=1 HOME=/tmp
USER 65532:65532
WORKDIR /tmp
EXPOSE 8080 8081 9090
ENTRYPOINT ["python", "-m", "gateway"]
