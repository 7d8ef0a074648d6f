"""Pages in a real browser without a window, for the tests of what is looked at in one.

Needs Chromium and its driver; `make browser` installs both on Debian and Ubuntu.
"""

import contextlib
import shutil

import peers
import pytest

PHONE, DESKTOP = (390, 844), (1280, 900)


@contextlib.contextmanager
def open_browser():
    """A `Browser`; or a skip, with the reason, where there is none."""
    programs = [_first("chromium", "chromium-browser", "google-chrome"), _first("chromedriver")]
    if None in programs:
        pytest.skip("no browser: `make browser` installs chromium and chromedriver with apt-get")
    webdriver = peers.load("selenium.webdriver")
    service = peers.load("selenium.webdriver.chrome.service").Service(programs[1])
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for switch in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu"):
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield Browser(driver)
    finally:
        driver.quit()


def _first(*names):
    return next(filter(None, map(shutil.which, names)), None)


class Browser:
    """What the tests ask of a page; `driver` is Selenium's."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, address, size=DESKTOP):
        width, height = size
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
        )
        self.driver.get(address)

    def run(self, script):
        """What a script returns."""
        return self.driver.execute_script(script)

    def errors(self):
        """What the console has shown as errors since it was asked last."""
        return [line["message"] for line in self.driver.get_log("browser") if _is_bad(line)]

    def hidden_width(self):
        """Pixels that one would have to scroll to the right for."""
        root = "document.scrollingElement"
        return self.run(f"return {root}.scrollWidth - document.documentElement.clientWidth")

    def images(self):
        """{address: natural width in pixels} of the images of the page, loaded without delay."""
        return self.driver.execute_async_script(
            "const done = arguments[0], images = [...document.images];"
            "images.forEach((image) => image.loading = 'eager');"
            "Promise.allSettled(images.map((image) => image.decode())).then(() =>"
            " done(Object.fromEntries(images.map((image) => [image.src, image.naturalWidth]))));"
        )


def _is_bad(line):
    return line["level"] in ("SEVERE", "WARNING")
