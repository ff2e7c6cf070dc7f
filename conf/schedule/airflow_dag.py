"""An Airflow DAG that runs conf/daily.yaml once per day on YARN.

Airflow fails at once on exit codes 2 (bad input) and 3 (vectors moved too far), and retries all other
failures. After 75 (another scheduler runs this date) it retries until that run is done, and then has nothing
to do.
"""

from datetime import datetime, timedelta

from airflow import DAG
from airflow.exceptions import AirflowFailException
from airflow.operators.python import PythonOperator
from airflow.timetables.interval import CronDataIntervalTimetable

COMMAND = [
    *("dask-submit", "--master", "yarn", "--name", "graphmill-shop", "--queue", "nightly"),
    *("--num-workers", "16", "--worker-cores", "1", "--worker-memory", "8GiB"),
    *("--archive", "hdfs:///environments/graphmill.tar.gz"),
    *("pipeline.py", "--conf", "hdfs:///conf/shop/daily.yaml", "--date", "{{ ds }}"),
]
FOR_A_PERSON = {2: "bad input", 3: "the vectors moved farther than drift.max_p10"}


def submit(command: list[str]) -> None:
    """Run the command; what only a person can decide is not retried."""
    import subprocess

    code = subprocess.run(command, check=False).returncode
    if code in FOR_A_PERSON:
        raise AirflowFailException(f"{FOR_A_PERSON[code]}: see the log above")
    if code != 0:
        raise RuntimeError(f"dask-submit ended with exit code {code}")


with DAG(
    dag_id="graphmill_shop",
    schedule=CronDataIntervalTimetable("30 2 * * *", timezone="UTC"),  # else Airflow 3 says today for `ds`
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
