# Image that runs every recipe as any user, on a CPU or an NVIDIA GPU; docs/scaling.md shows how.
# The digest of this tag, to be appended as @sha256:..., is shown by
# docker buildx imagetools inspect --format '{{.Manifest.Digest}}' python:3.11.14-slim-trixie
FROM python:3.11.14-slim-trixie

# Build of torch: "cpu", or a version of CUDA such as "cu130".
ARG TORCH=cpu

# The user of `docker run --user` may have neither a name nor a home: caches go to a folder that all may write to, and
# programs that ask for the user's name get one.
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 UV_NO_CACHE=1 UV_SYSTEM_PYTHON=1 \
    USER=dair HOME=/cache XDG_CACHE_HOME=/cache HF_HOME=/cache/huggingface MPLCONFIGDIR=/cache/matplotlib \
    TORCHINDUCTOR_CACHE_DIR=/cache/inductor TRITON_CACHE_DIR=/cache/triton HF_HUB_DISABLE_TELEMETRY=1

# Recipes write below `outputs` of the current folder: the mounted folder.
RUN useradd --uid 1000 --no-create-home --home-dir /cache dair \
    && mkdir --mode=1777 /cache /outputs \
    && mkdir /app && ln -s /outputs /app/outputs
WORKDIR /app

# The requirements change less often than the code; this layer is rebuilt only when they change.
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
COPY dair_hf/__init__.py dair_hf/__init__.py
RUN pip install uv==0.13.9 \
    && uv pip install --torch-backend "$TORCH" --constraint constraints.txt '.[recipes,report]' \
    && uv pip uninstall dair-hf

COPY . .
RUN uv pip install --no-deps .

USER 1000:1000
ENV HF_HUB_OFFLINE=1
CMD ["dair-hf", "train", "demo"]
