"""Names that try to be something else than text, and a study that has them everywhere."""

from fake_study import ARMS, TASKS, FakeStudy

HOSTILE = '<img src=x onerror=alert(1)> $\\frac{1}$ 漢字 \x00 [bold] & "quotes" ' + "x" * 200
SIGNS = "<>&\"'`/={}%$\\_^#~*[]()|!- \u202e\u2066\u0301\u05d0\U0001f600"
TRICKS = (
    "</script><script>alert(1)</script>", "{{ 7 * 7 }}", "<!--", "]]>", "#1b2430", 'id="x"',
    "\\input{x}", "url(#a)", "https://example.org/x.png", "a" * 300, "عربي" * 70,
    "\u202eright to left\u2066", '"><svg onload=alert(1)>', "-->",
    "]]><style>*{display:none}</style>",
)  # fmt: skip
NUM_NAMES = 7


def hostile_study(names, **settings):
    """Put a name everywhere where people can put one."""
    title, description, arm, other, task, group, key = names
    return FakeStudy(
        steps=40, title=title, description=description, learning_rates=(1e-4,), seeds=(0, 1),
        arms=(ARMS[0], ("evil", arm, "MLM", (("mlm", 1.0),), 0.1), ("worse", other, *ARMS[2][2:])),
        tasks=(("pydocs-sc", "sc", task, "accuracy", 0.5), TASKS[1]),
        provenance={group: {key: title, "list": [arm, {key: [None, True]}]}, key: other},
        **settings,
    )  # fmt: skip
