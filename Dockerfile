# docker build -t dair-hf . && docker run --rm -v "$PWD/outputs:/app/outputs" dair-hf
#
# The build asks pip for the versions in constraints.txt. For an image without CUDA libraries let pip find CPU wheels of
# torch, e.g. with --build-arg PIP_EXTRA_INDEX_URL=<the address of an index that has them>.
FROM python:3.11-slim

ARG PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1 \
    HF_HOME=/app/.cache/huggingface HF_HUB_DISABLE_TELEMETRY=1

# A user without rights of its own; it owns /app, where the demo writes its outputs.
RUN useradd --create-home --uid 1000 dair && mkdir /app && chown dair:dair /app
WORKDIR /app

# The requirements change less often than the code: this layer is rebuilt only with them.
COPY --chown=dair:dair pyproject.toml constraints.txt README.md LICENSE ./
COPY --chown=dair:dair dair_hf/__init__.py dair_hf/__init__.py
RUN pip install -c constraints.txt '.[demo]' && pip uninstall --yes dair-hf

COPY --chown=dair:dair . .
RUN pip install --no-deps -c constraints.txt .

USER dair
ENV HF_HUB_OFFLINE=1
CMD ["accelerate", "launch", "recipes/multiwoz_simpletod.py", "--config", "recipes/configs/demo.yaml"]
