"""Dask's dashboard, of a scheduler in this process: made when somebody first looks at it.

It stands on Bokeh, whose import takes longer than a short run; most runs nobody looks at.
"""

import importlib.util

from distributed import Scheduler
from tornado import web


def is_installed() -> bool:
    """Whether there is a dashboard to be had."""
    return importlib.util.find_spec("bokeh") is not None


def offer(scheduler: Scheduler) -> None:
    """Answer the first request for a page of the dashboard by making it, at the address the scheduler has."""
    if is_installed():
        scheduler.http_application.add_application(
            web.Application([(r".*", _Maker, {"scheduler": scheduler})])
        )


class _Maker(web.RequestHandler):
    """Makes the dashboard, and sends who asked to the same page again."""

    def initialize(self, scheduler: Scheduler) -> None:
        """Called by tornado."""
        self.scheduler = scheduler

    async def get(self) -> None:
        """Called by tornado, in the scheduler's own thread."""
        application = self.scheduler.http_application
        if self.application in application.applications:
            application.applications.remove(self.application)
            from distributed.dashboard.scheduler import connect

            connect(application, self.scheduler.http_server, self.scheduler)
        self.redirect("/" + self.request.uri.lstrip("/"))
