# syntax=docker/dockerfile:1
# The commands of GraphMill at the tested versions, for CPUs or on a CUDA base.
#
#   docker build -t graphmill .
#   docker build -t graphmill:cuda --build-arg BASE=nvidia/cuda:13.0.1-runtime-ubuntu24.04 --build-arg EXTRAS=cuda,ssh .
#
#   docker run -v "$PWD:/work" graphmill pipeline.py --conf conf.yaml
#   docker run graphmill python -m etl --help
#
# --build-arg PIP_ARGS=...       arguments for pip; an index of PyTorch without CUDA makes a CPU image small
# --build-arg JRE=1              a Java, for cluster.hdfs_driver=libhdfs and --master yarn; Hadoop itself is mounted:
#                                -v /opt/hadoop:/opt/hadoop:ro -e HADOOP_HOME=/opt/hadoop
ARG BASE=python:3.12-slim-bookworm

# ---- build stage
FROM ${BASE} AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ARG EXTRAS=ssh
ARG PIP_ARGS=
# The compiler works at the build alone: the wheel holds compiled code for every x86-64 processor with AVX2.
# hadolint ignore=DL3008,SC2086
RUN packages="g++"; \
    if ! command -v python3 >/dev/null; then packages="$packages python3 python3-venv"; fi; \
    apt-get update && \
    apt-get install -y --no-install-recommends $packages && \
    rm -rf /var/lib/apt/lists/*
WORKDIR /opt/source
COPY pyproject.toml hatch_build.py constraints.txt README.md LICENSE ./
COPY conf conf
COPY graphmill graphmill
COPY etl etl
COPY train train
COPY remap remap
# hadolint ignore=SC2086
RUN python3 -m venv /opt/graphmill && \
    /opt/graphmill/bin/pip install --no-cache-dir --disable-pip-version-check ${PIP_ARGS} \
      --constraint constraints.txt ".[${EXTRAS}]"

# ---- runtime stage
FROM ${BASE} AS runtime
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ARG JRE=
# The HDFS client loads Kerberos' library if the cluster requires Kerberos.
# hadolint ignore=DL3008,SC2086
RUN packages="libgssapi-krb5-2"; \
    if ! command -v python3 >/dev/null; then packages="$packages python3"; fi; \
    if [ -n "${JRE}" ]; then packages="$packages openjdk-17-jre-headless"; fi; \
    apt-get update && \
    apt-get install -y --no-install-recommends $packages && \
    rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin graphmill && \
    install --directory --owner=graphmill /work /etc/hadoop/conf
COPY --from=build /opt/graphmill /opt/graphmill
COPY conf /opt/graphmill/conf
COPY --chmod=755 docker/entrypoint.sh /usr/local/bin/graphmill-entrypoint
# Mount the Hadoop configuration here to reach HDFS.
ENV HADOOP_CONF_DIR=/etc/hadoop/conf \
    PATH=/opt/graphmill/bin:$PATH \
    MALLOC_TRIM_THRESHOLD_=268435456 \
    MALLOC_MMAP_THRESHOLD_=67108864 \
    ARROW_DEFAULT_MEMORY_POOL=system \
    OMP_WAIT_POLICY=PASSIVE \
    THP_MEM_ALLOC_ENABLE=1
USER 10001
WORKDIR /work
ENTRYPOINT ["graphmill-entrypoint"]
CMD ["--help"]
