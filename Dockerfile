# dsdoctor for a node: docker run --rm --gpus all dsdoctor
# It examines the node. For the stack of another image run dsdoctor.pyz inside that one (README).
ARG PYTHON=3.13-slim-bookworm

FROM python:${PYTHON} AS build
WORKDIR /source
COPY pyproject.toml setup.py README.md LICENSE ./
COPY deploy/constraints.txt deploy/
COPY dsdoctor dsdoctor
COPY probes probes
COPY matrices matrices
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
    && python -m venv /opt/dsdoctor \
    && /opt/dsdoctor/bin/pip install --no-cache-dir --constraint deploy/constraints.txt /wheels/*.whl \
    && /opt/dsdoctor/bin/pip uninstall --yes pip

FROM python:${PYTHON}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="dsdoctor" \
      org.opencontainers.image.description="Environment doctor for GPU nodes that serve and train DeepSeek-class models" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# What the NVIDIA container runtime gives the container: every GPU, NVML and CUDA.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility,compute \
    PATH=/opt/dsdoctor/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1
COPY --from=build /opt/dsdoctor /opt/dsdoctor
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["dsdoctor"]
