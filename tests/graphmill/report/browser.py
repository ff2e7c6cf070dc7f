"""Pages in headless Chromium, without a driver."""

import json
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--enable-logging=stderr", "--v=0"),
    *("--virtual-time-budget=30000", "--dump-dom"),
)

# Tells which boxes scroll, and in which charts something was drawn on a canvas.
PROBE = """
<script>
const canvases = (node) => [...node.querySelectorAll("*")].flatMap((each) => [
  ...(each.tagName === "CANVAS" ? [each] : []), ...(each.shadowRoot ? canvases(each.shadowRoot) : []),
]);
const inked = (canvas) => canvas.width && canvas.height &&
  canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((byte) => byte);
setInterval(() => {
  const charts = [...document.querySelectorAll(".chart")];
  const drawn = charts.filter((chart) => canvases(chart).some(inked)).map((chart) => chart.id);
  const scrolls = [...document.querySelectorAll("main *, nav")].filter((each) => {
    const {overflowX, overflowY} = getComputedStyle(each);
    return (/auto|scroll/.test(overflowX) && each.scrollWidth > each.clientWidth)
      || (/auto|scroll/.test(overflowY) && each.scrollHeight > each.clientHeight);
  }).map((each) => each.tagName + "." + each.className);
  document.body.dataset.probe = JSON.stringify({
    drawn, scrolls, overflows: document.documentElement.scrollWidth > innerWidth,
  });
}, 500);
</script>
"""


@dataclass(frozen=True)
class Shown:
    """The page in the browser."""

    dom: str
    console: list[str]

    @property
    def num_charts(self) -> int:
        found = re.search(r'<html[^>]* data-charts="(\d+)"', self.dom)
        return int(found[1]) if found else 0

    @property
    def probe(self) -> dict[str, object]:
        found = re.search(r'data-probe="([^"]*)"', self.dom)
        content: dict[str, object] = json.loads(found[1].replace("&quot;", '"')) if found else {}
        return content


def show(page: Path, *options: str) -> Shown:
    """Open the page; without a browser, skip the test."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium to open the page with: apt-get install chromium")
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, *OPTIONS, f"--user-data-dir={profile}", *options, page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return Shown(done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line])


def show_probed(page: Path, *options: str) -> Shown:
    """Open a copy of the page in which the probe may run; the page's own policy forbids it."""
    text = page.read_text()
    freed = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text, count=1)
    assert freed != text
    copy = page.with_name("probed.html")
    copy.write_text(freed.replace("</body>", f"{PROBE}</body>"))
    return show(copy, *options)
