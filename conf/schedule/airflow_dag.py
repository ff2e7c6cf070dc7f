"""An Airflow DAG that runs conf/daily.yaml once per day on YARN.

Airflow fails at once on exit code 2 (bad input) and retries all other failures. After 75 (another scheduler
runs this date) it retries until that run is done, and then has nothing to do.
"""

from datetime import datetime, timedelta

from airflow import DAG
from airflow.exceptions import AirflowFailException
from airflow.operators.python import PythonOperator

COMMAND = [
    *("dask-submit", "--master", "yarn", "--name", "graphmill-shop", "--queue", "nightly"),
    *("--num-workers", "16", "--worker-cores", "1", "--worker-memory", "8GiB"),
    *("--archive", "hdfs:///environments/graphmill.tar.gz"),
    *("pipeline.py", "--conf", "hdfs:///conf/shop/daily.yaml", "--date", "{{ ds }}"),
]
BAD_INPUT = 2


def submit(command: list[str]) -> None:
    """Run the command; bad input is not retried."""
    import subprocess

    code = subprocess.run(command, check=False).returncode
    if code == BAD_INPUT:
        raise AirflowFailException("bad input: see the log above")
    if code != 0:
        raise RuntimeError(f"dask-submit ended with exit code {code}")


with DAG(
    dag_id="graphmill_shop",
    schedule="30 2 * * *",
    start_date=datetime(2026, 11, 1),
    catchup=True,
    max_active_runs=1,  # a date continues from the previous date
    default_args={
        "retries": 4,
        "retry_delay": timedelta(minutes=10),
        "execution_timeout": timedelta(hours=6),
    },
) as dag:
    PythonOperator(task_id="embeddings", python_callable=submit, op_kwargs={"command": COMMAND})
