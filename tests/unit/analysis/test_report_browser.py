"""Drives a report in headless Chromium as a reader would: mouse, keys, two widths, both themes."""

from pathlib import Path

import pytest
from browser import find_browser, start_browser
from fake_study import FakeStudy
from hostile import HOSTILE, NUM_NAMES, TRICKS, hostile_study

from biphasic.analysis.report import write_report
from warm import draw_nothing

PHONE, DESKTOP = 390, 1280
A4 = 688
"""CSS pixels between margins of 14 mm: 182 mm of 96 pixels an inch."""
SCORES = "#scores table"
COLUMN = 3
"""Of the first task in the table of scores: after the arm and two losses."""
CONTRAST = Path(__file__).with_name("contrast.js")
OPEN_ALL = "document.querySelectorAll('details').forEach((part) => { part.open = true; })"
# What scrolls within itself, and what only a screen reader meets, may be wider.
OUTSIDE = """
Array.from(document.querySelectorAll("main *, header *, footer *")).filter((element) =>
  !element.closest(".scroll, .unseen, svg") && element.getClientRects().length
  && (element.getBoundingClientRect().right > innerWidth + 0.5
      || element.getBoundingClientRect().left < -0.5))
  .map((element) => element.outerHTML.slice(0, 80))
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("drawn"),
    pytest.mark.skipif(find_browser() is None, reason="no Chromium here; apt-get install chromium"),
]


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


def test_a_click_on_a_heading_sorts_and_is_announced(page):
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


def test_headings_are_reached_and_pressed_by_keys(page):
    page.ask(f"document.querySelector('{SCORES}').closest('.scroll').focus()")
    page.press("Tab", times=1 + COLUMN)
    assert "Which library" in focused(page)
    page.press("Enter")
    scores = [float(text.split()[0]) for text in column(page, COLUMN)]
    assert scores == sorted(scores, reverse=True)
    assert "Which library" in focused(page)


def test_what_has_no_score_stays_at_the_end(browser, tmp_path):
    missing = {("mlm", "pydocs-ir", 1e-4, seed) for seed in range(2)}
    study = FakeStudy(steps=40, learning_rates=(1e-4,), seeds=(0, 1), missing=missing)
    with pytest.MonkeyPatch.context() as patch:
        draw_nothing(patch)
        browser.open(write_report(*study.write(tmp_path)))
    number = COLUMN + 3
    for _ in range(2):
        browser.click(heading(number))
        assert column(browser, number)[-1].startswith("–")
        assert not column(browser, number)[0].startswith("–")


def test_parts_open_by_keys_and_by_links(page):
    is_open = "Array.from(document.querySelectorAll('.part'), (part) => part.open)"
    assert sum(page.ask(is_open)) == 0
    page.ask("document.querySelector('#cost').closest('details').firstElementChild.focus()")
    page.press("Enter")
    assert page.ask("document.querySelector('#cost').checkVisibility()") is True
    page.press("Space")
    assert page.ask("document.querySelector('#cost').checkVisibility()") is False
    page.click("nav a[href='#problems']")
    assert page.ask("document.querySelector('#problems').checkVisibility()") is True
    assert "seed 4: not run yet" in page.ask("document.querySelector('#problems').innerText")
    # The sticky row of links covers nothing of what was jumped to.
    assert page.ask(
        "document.querySelector('#problems').getBoundingClientRect().top"
        " > document.querySelector('nav').getBoundingClientRect().bottom"
    )


def test_hints_show_on_hover_and_on_focus(page):
    tip = "(() => { const tip = document.getElementById('tip');"
    text = f"{tip} return tip.hidden ? null : tip.innerText; }})()"
    assert page.ask(text) is None
    page.hover("#scores tr:nth-child(2) button.value")
    hovered = page.ask(text)
    assert hovered.startswith("Seeds: ")
    assert "×" in hovered
    page.hover("h1")
    assert page.ask(text) is None
    page.ask("document.querySelector('#scores tr:nth-child(2) button.value').focus()")
    assert page.ask(text) == hovered
    assert page.ask("document.activeElement.getAttribute('aria-describedby')") == "tip"
    page.press("Escape")
    assert page.ask(text) is None


def test_arrows_move_between_numbers_and_tab_leaves_them(page):
    page.ask(f"document.querySelector('{SCORES} button.value').focus()")
    first = focused(page)
    rows = page.ask(
        f"Array.from(document.querySelectorAll('{SCORES} tbody tr'), (row) =>"
        " Array.from(row.querySelectorAll('.value'), (value) => value.textContent))"
    )
    assert first == rows[0][0]
    for key, expected in (
        ("ArrowDown", rows[1][0]), ("ArrowRight", rows[1][1]), ("End", rows[1][-1]),
        ("ArrowRight", rows[1][-1]), ("ArrowUp", rows[0][-1]), ("Home", rows[0][0]),
    ):  # fmt: skip
        page.press(key)
        assert focused(page) == expected
    page.press("ArrowDown")
    page.press("Tab")
    assert page.ask(f"document.querySelector('{SCORES}').contains(document.activeElement)") is False
    page.press("Tab", shift=True)
    assert focused(page) == rows[1][0]


def test_a_number_opens_its_runs_and_gives_the_focus_back(page, report):
    page.ask(f"document.querySelector('{SCORES} tr:nth-child(2) button.value').focus()")
    page.press("Enter")
    assert page.ask("document.getElementById('runs').open") is True
    assert page.ask("document.querySelector('#runs h2').innerText") == "MLM on Which library"
    table = "#runs table"
    assert len(column(page, 0, table)) == 3 * 5
    assert column(page, 5, table).count("yes") == 5
    page.click(heading(3, table))
    page.click(heading(3, table))
    tests = [float(text) for text in column(page, 3, table)]
    assert tests == sorted(tests, reverse=True)
    link = page.ask("document.querySelector('#runs a').href")
    assert link.startswith(report.parents[2].as_uri() + "/store/finetunes/")
    assert page.ask("document.querySelector('#runs').contains(document.activeElement)") is True
    page.press("Escape")
    assert page.ask("document.getElementById('runs').open") is False
    assert page.ask("document.activeElement.dataset.cell") == str(1 * 4)


def test_runs_that_are_missing_have_no_link(page):
    page.click(f"{SCORES} tr:nth-child(2) td:nth-child({COLUMN + 3 + 1}) button.value")
    assert page.ask("document.querySelector('#runs h2').innerText") == "MLM on Find the page"
    states = column(page, 4, "#runs table")
    assert states.count("missing") == 6
    assert page.ask("document.querySelectorAll('#runs a').length") == 9
    page.click("#runs .close")
    assert page.ask("document.getElementById('runs').open") is False


def test_the_theme_follows_the_system_until_a_reader_chooses(page):
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.ask(ground)
    page.prefer(scheme="dark")
    dark = page.ask(ground)
    assert dark != light
    page.click("#theme")
    assert (page.ask(ground), page.ask("document.getElementById('theme').innerText")) == (
        light, "Theme: light",
    )  # fmt: skip
    page.click("#theme")
    page.prefer(scheme="light")
    assert page.ask(ground) == dark
    page.prefer(scheme="light", media="print")
    assert page.ask("getComputedStyle(document.documentElement).colorScheme") == "light"
    page.prefer()
    page.click("#theme")
    assert page.ask(ground) == light


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_contrast(page, scheme):
    page.prefer(scheme=scheme)
    page.ask(OPEN_ALL)
    page.ask("document.querySelector('button.value').focus()")
    seen = page.ask(f"({CONTRAST.read_text()})(4.5)")
    assert seen["count"] > 300
    assert seen["found"] == []
    page.click("#scores button.value")
    assert page.ask(f"({CONTRAST.read_text()})(4.5)")["found"] == []


@pytest.mark.parametrize("width", [PHONE, 768, DESKTOP])
def test_the_page_does_not_scroll_sideways(page, width):
    page.resize(width)
    page.ask(OPEN_ALL)
    assert page.ask("document.documentElement.scrollWidth") == width
    assert page.ask(OUTSIDE) == []
    page.click("#scores button.value")
    assert page.ask("document.getElementById('runs').scrollWidth") <= width
    assert page.ask("document.documentElement.scrollWidth") == width


def test_nothing_is_cut_on_paper(page):
    page.resize(A4)
    page.prefer(media="print")
    page.ask(OPEN_ALL)
    assert page.ask("document.documentElement.scrollWidth") == A4
    assert page.ask(OUTSIDE.replace(".scroll, ", "")) == []


def test_paper_gets_everything_that_is_folded(page):
    assert page.print_to_pdf().startswith(b"%PDF")
    opened = "document.querySelectorAll('details[open]').length"
    before = page.ask(opened)
    page.ask("window.dispatchEvent(new Event('beforeprint'))")
    assert page.ask(opened) == page.ask("document.querySelectorAll('details').length")
    page.ask("window.dispatchEvent(new Event('afterprint'))")
    assert page.ask(opened) == before


def test_without_script_everything_but_the_runs_is_shown(browser, report):
    with browser.without_script():
        browser.open(report)
        assert browser.ask("document.getElementById('theme').checkVisibility()") is False
        assert "60." in browser.ask("document.querySelector('#scores').innerText")
        browser.click("nav a[href='#cost']")
        assert browser.ask("document.querySelector('#cost').checkVisibility()") is True


@pytest.mark.parametrize("names", [[HOSTILE] * NUM_NAMES, TRICKS[:7], TRICKS[7:14]])
def test_hostile_names_do_nothing_and_break_nothing(browser, tmp_path, names):
    report = write_report(*hostile_study(names).write(tmp_path))
    browser.resize(PHONE)
    browser.open(report)
    browser.ask(OPEN_ALL)
    assert browser.ask("document.documentElement.scrollWidth") == PHONE
    assert browser.ask(OUTSIDE) == []
    browser.click("#scores tr:nth-child(2) button.value")
    assert browser.ask("document.getElementById('runs').scrollWidth") <= PHONE
    assert browser.ask("document.querySelector('#runs bdi').textContent") == browser.ask(
        "JSON.parse(document.getElementById('data').textContent).arms[1]"
    )
    browser.press("Escape")
    browser.hover("#scores tr:nth-child(2) button.value")
    assert browser.ask("document.getElementById('tip').hidden") is False
    assert browser.ask("document.querySelectorAll('img, [onload], [onerror]').length") == 0
    assert browser.complaints() == []
    assert browser.requests() == [report.as_uri()]
