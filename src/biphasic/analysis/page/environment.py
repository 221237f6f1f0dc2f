"""Rendering of templates; everything is escaped except markup of this package."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from biphasic.amounts import amount, duration, scientific
from biphasic.analysis.text import listing, metric_name, plain, rate


def render_page(template: str, **context: Any) -> str:
    """Fill a page template, with the package's script and a content policy.

    The policy allows the page its own style and this script, by hash: no request, form, frame or
    other code.
    """
    folder = resources.files("biphasic.analysis") / "templates"
    script = (folder / "report.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return fill(template, script=Markup(script), policy=policy, **context)  # noqa: S704 - our own


def fill(template: str, **context: Any) -> str:
    """Fill a template of the package.

    Strings are escaped, and characters that a page cannot show are replaced.
    """
    return _environment().get_template(template).render(**context)


@cache
def _environment() -> jinja2.Environment:
    def finalize(value: Any) -> Any:
        return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("biphasic.analysis"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalize,
    )
    environment.filters.update(
        amount=amount, duration=duration, scientific=scientific, rate=rate, metric=metric_name,
        listing=listing, grouped="{:,}".format,
    )  # fmt: skip
    return environment
