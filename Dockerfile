# The commands of GraphMill with the tested set of versions.
#   docker build -t graphmill .
#   docker run -v "$PWD:/data" -w /data graphmill pipeline.py --conf conf.yaml
FROM python:3.12-slim
WORKDIR /opt/graphmill
COPY pyproject.toml constraints.txt README.md ./
COPY graphmill graphmill
COPY etl etl
COPY train train
COPY remap remap
COPY conf conf
RUN pip install --no-cache-dir --constraint constraints.txt .
# Mount the cluster's configuration here to reach HDFS.
ENV HADOOP_CONF_DIR=/etc/hadoop/conf
WORKDIR /work
ENTRYPOINT ["dask-submit"]
