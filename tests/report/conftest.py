"""Reports in Chromium."""

import pytest

from flax_transformer.report import write_page
from tests.chromium import Page, executable


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    if (path := executable()) is None:
        pytest.skip("no Chromium to look at the page with: apt-get install chromium")
    page = Page(path, tmp_path_factory.mktemp("profile"))
    yield page
    page.close()


@pytest.fixture
def show(chromium, tmp_path):
    """Open a report; nothing may complain or be fetched."""

    def open_(report, **options):
        path = write_page(tmp_path / "report.html", report)
        chromium.open(path, **options)
        return chromium

    yield open_
    assert chromium.complaints() == []
    assert chromium.requests() == [(tmp_path / "report.html").resolve().as_uri()]
