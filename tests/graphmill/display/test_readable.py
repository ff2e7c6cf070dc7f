"""Times, as people read them."""

import re
import time
from datetime import datetime, timedelta

from graphmill.display import readable


def test_a_moment_has_its_date_unless_it_is_today() -> None:
    assert readable.moment(time.time()) in (f"{datetime.now():%H:%M}", readable.moment(time.time()))
    earlier = datetime.now() - timedelta(days=3)
    assert readable.moment(earlier.timestamp()) == f"{earlier:%Y-%m-%d %H:%M}"
    assert re.fullmatch(r"\d\d:\d\d", readable.moment(datetime.now().replace(hour=12).timestamp()))
