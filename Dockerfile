# The image of a job on Kubernetes: this package, and the workspace. Build it in the folder that holds experiments/:
#    docker build --tag=REGISTRY/trainer:1 .
# GPUs:            --build-arg=TENSORFLOW='tensorflow[and-cuda]'
# a TPU of GKE:    --build-arg=TENSORFLOW='tensorflow-tpu==2.20.0 libtpu==0.0.14'
FROM python:3.11-slim

WORKDIR /build
COPY requirements.lock ./
ARG TENSORFLOW=tensorflow
RUN grep --invert-match '^tensorflow==' requirements.lock > others.lock \
 && pip install --no-cache-dir --no-deps --requirement=others.lock \
 && pip install --no-cache-dir --constraint=requirements.lock ${TENSORFLOW}
COPY pyproject.toml README.md LICENSE ./
COPY official_trainer ./official_trainer
RUN pip install --no-cache-dir --no-deps .

WORKDIR /workspace
COPY train.py ./
COPY experiments ./experiments
COPY configs ./configs
ENTRYPOINT ["official-trainer"]
