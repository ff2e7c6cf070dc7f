"""`python -m bench month`: thirty days of deltas, with three waves of drift, beside trainings from nothing.

Every wave has ids of its own, and ten days. Adagrad's sums of squares grow over the month; if they froze
what has to move, the last wave would come to less of what a training from nothing gets than the first.
"""

from bench.made_week import make
from bench.report import Report
from bench.setting import Setting
from bench.synthetic import Triples, triples_folder
from bench.week import DELTA, MODELS, Days

NUM_DAYS, NUM_WAVES = 30, 3
SPLITS = ("test_old", *(f"test_drift_{wave}" for wave in range(1, NUM_WAVES + 1)))
MODEL = "1-vs-all"


def run(setting: Setting) -> Report:
    """Run the month as deltas, and from nothing on the last day of each wave."""
    source = setting.triples or triples_folder(setting.graphs, Triples())
    report = Report(
        "month", f"Thirty days of {source.name}, {MODEL}: test MRR by day, with three waves of drift"
    )
    with setting.run_folder("month") as folder:
        week = make(source, folder / "tables", NUM_DAYS, NUM_WAVES)
        days = Days(setting, week, folder / "runs", MODELS[MODEL], SPLITS)
        last, _ = days.run("first", 0)
        report.add("the first day", **days.mrrs(last))
        for day in range(1, NUM_DAYS + 1):
            last, _ = days.run("deltas", day, DELTA, last)
            if day % (NUM_DAYS // NUM_WAVES // 2) == 0:
                report.add(f"day {day}, deltas", **days.mrrs(last))
            if day % (NUM_DAYS // NUM_WAVES) == 0:
                whole, _ = days.run("whole", day)
                report.add(f"day {day}, from nothing", **days.mrrs(whole))
    report.notes.append("Wave n of drift has its new edges on days 10 n - 9 to 10 n; one seed.")
    return report
