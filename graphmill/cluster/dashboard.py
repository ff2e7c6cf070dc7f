"""Dask's dashboard of a scheduler in this process, made at the first request for one of its pages.

The dashboard needs Bokeh, and the import of Bokeh takes longer than a short run.
"""

import importlib.util

from distributed import Scheduler
from tornado import web


def is_installed() -> bool:
    """Tell whether Bokeh is installed."""
    return importlib.util.find_spec("bokeh") is not None


def offer(scheduler: Scheduler) -> None:
    """Let the first request for a page at the scheduler's HTTP address make the dashboard."""
    if is_installed():
        scheduler.http_application.add_application(
            web.Application([(r".*", _Maker, {"scheduler": scheduler})])
        )


class _Maker(web.RequestHandler):
    """Makes the dashboard, then redirects to the same page."""

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
