# docker build -t dair-hf .
# mkdir -p outputs
# docker run --rm --user "$(id -u):$(id -g)" -v "$PWD/outputs:/app/outputs" dair-hf
#
# Create the folder first, since a folder created by Docker belongs to root; the container runs as you. For another recipe,
# add its command, and its data as another volume:
#
#   docker run ... -v "$PWD/mnist:/data/mnist:ro" dair-hf \
#       accelerate launch recipes/colored_mnist.py --config recipes/configs/colored_mnist_adv.yaml --mnist /data/mnist
#
# For a GPU, add --gpus all; the host needs NVIDIA's container toolkit. The build installs torch from PyPI, which includes
# CUDA. For an image without CUDA, add --build-arg PIP_EXTRA_INDEX_URL=<the address of an index with CPU wheels>.
# For a recipe that downloads a model from the Hub, add -e HF_HUB_OFFLINE=0.
FROM python:3.11-slim

ARG PIP_EXTRA_INDEX_URL
# Caches are in folders that any user may write to.
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1 \
    HOME=/tmp HF_HOME=/tmp/huggingface MPLCONFIGDIR=/tmp/matplotlib HF_HUB_DISABLE_TELEMETRY=1

RUN useradd --uid 1000 dair && mkdir -p /app/outputs && chown -R dair:dair /app && chmod 777 /app/outputs
WORKDIR /app

# The requirements change less often than the code; this layer is rebuilt only when they change.
COPY --chown=dair:dair pyproject.toml constraints.txt README.md LICENSE ./
COPY --chown=dair:dair dair_hf/__init__.py dair_hf/__init__.py
RUN pip install -c constraints.txt '.[demo,images,regression,search,fuzzy,attacks]' && pip uninstall --yes dair-hf

COPY --chown=dair:dair . .
RUN pip install --no-deps -c constraints.txt .

USER dair
ENV HF_HUB_OFFLINE=1
CMD ["accelerate", "launch", "recipes/multiwoz_simpletod.py", "--config", "recipes/configs/demo.yaml"]
