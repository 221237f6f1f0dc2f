"""Drives a report in headless Chromium as a reader would: mouse, keys, two widths, both themes."""

import pytest
from browser import find_browser, start_browser
from fake_study import FakeStudy

from biphasic.analysis.report import write_report

PHONE, DESKTOP = 390, 1280
SCORES = "#scores table"
COLUMN = 3
"""Of the first task in the table of scores: after the arm and two losses."""

pytestmark = pytest.mark.skipif(
    find_browser() is None, reason="no Chromium here; apt-get install chromium"
)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    missing = {("mlm", "pydocs-ir", rate, seed) for rate in (1e-4, 2e-4, 5e-4) for seed in (3, 4)}
    study = FakeStudy(steps=40, convention="paper", missing=missing)
    return write_report(*study.write(tmp_path_factory.mktemp("report")))


@pytest.fixture(scope="module")
def browser():
    with start_browser(find_browser()) as started:
        yield started


@pytest.fixture
def page(browser, report):
    browser.prefer()
    browser.resize(DESKTOP)
    browser.open(report)
    yield browser
    assert browser.complaints() == []
    assert browser.requests() == [report.as_uri()]


def column(page, number, table=SCORES):
    return page.ask(
        f"Array.from(document.querySelectorAll('{table} tbody tr'),"
        f" (row) => row.cells[{number}].textContent.trim())"
    )


def heading(number, table=SCORES):
    return f"{table} th:nth-child({number + 1}) button"


def focused(page):
    return page.ask("document.activeElement.textContent.trim()")


def test_a_click_on_a_heading_sorts_and_says_so(page):
    before = column(page, COLUMN)
    page.click(heading(COLUMN))
    scores = [float(text.split()[0]) for text in column(page, COLUMN)]
    assert scores == sorted(scores, reverse=True)
    assert column(page, COLUMN) != before
    sorts = "Array.from(document.querySelectorAll('#scores th'), (th) => th.ariaSort)"
    assert page.ask(sorts)[COLUMN] == "descending"
    page.click(heading(COLUMN))
    assert [float(text.split()[0]) for text in column(page, COLUMN)] == sorted(scores)
    page.click(heading(1))
    losses = [float(text.rstrip("★")) for text in column(page, 1)]
    assert losses == sorted(losses)
    assert [value for value in page.ask(sorts) if value] == ["ascending"]
    assert page.ask("document.getElementById('said').textContent").startswith("Sorted by MLM loss")
