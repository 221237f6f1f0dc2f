"""Text sources from a file or an installed package."""

import json

import pytest

from biphasic import tokenizer
from biphasic.data.building.build import build_corpus, corpus_origin
from biphasic.data.building.built import merge_builds
from biphasic.data.building.config import CorpusConfig
from biphasic.data.corpus import Corpus
from biphasic.errors import ConfigError, DataError
from biphasic.plugins import load_with_plugins, shown
from biphasic.study.inputs.corpus import locate_corpus
from biphasic.study.resolve import resolve
from biphasic.study.study import Study
from plugin_files import forget_plugins, page_code, write_mailbox
from tiny_study import clm, tiny_study

MAILBOX = page_code("Mailbox")
YIELD = "yield SourceDocument(id=str(number),"
ORIGIN = "    def origin(self, context):\n        return {}\n\n    def doc"


@pytest.fixture
def spec(tmp_path):
    """A corpus file that names a source in a file beside it, and the mailbox that it reads."""
    forget_plugins()
    write_mailbox(tmp_path / "list.mbox")
    (tmp_path / "mail.py").write_text(MAILBOX)
    path = tmp_path / "corpus.yaml"
    path.write_text(
        "{sources: [{source: './mail.py:Mailbox', file: list.mbox}], "
        "vocab_size: 300, heldout_fraction: 0.5}"
    )
    yield path
    forget_plugins()


def load(spec, *edits) -> CorpusConfig:
    text = MAILBOX
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    (spec.parent / "mail.py").write_text(text)
    return load_with_plugins(CorpusConfig, spec).anchored(spec.parent)


def test_a_corpus_of_a_source_in_a_file(spec, tmp_path):
    config, folder = load(spec), tmp_path / "corpus"
    [source], named = config.sources, f"mail.py:Mailbox@{config.sources[0].plugin.code}"
    assert (source.source, source.file) == (named, tmp_path / "list.mbox")
    build_corpus(config, folder, num_workers=1, say=lambda _: None)
    code = [*(folder / "plugins").glob("*/mail.py")]
    assert [path.read_text() for path in code] == [MAILBOX]
    record = json.loads((folder / "built.json").read_text())
    assert record["plugins"] == {"mailbox": [named]}
    assert {*record["sources"]} == {"mailbox"}
    names = [json.loads(name) for name in Corpus(folder / "train").names()]
    assert names
    assert {*names} < {*map(str, range(8))}
    merge_builds([folder], tmp_path / "merged", say=print)
    assert json.loads((tmp_path / "merged/built.json").read_text())["plugins"] == record["plugins"]
    [kept] = (tmp_path / "merged/plugins").glob("*/mail.py")
    assert kept.read_text() == MAILBOX
    # What a job or another machine reads, from the copy alone.
    text = config.model_dump_json()
    (tmp_path / "mail.py").unlink()
    forget_plugins()
    with pytest.raises(ConfigError, match=r"mail\.py: not found with the code"):
        CorpusConfig.model_validate_json(text)


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([("id=str(number)", "id=number")], r"mailbox: documents yields SourceDocument\(id=0"),
        ([(f"{YIELD} text=", "yield (")], r"mailbox: documents yields 'message 0"),
        ([("get_payload", "payload")], r"mailbox: .*AttributeError"),
        ([(" text=", " text=None and ")], "mailbox: document '0': its text is of type NoneType"),
        ([("+ message", r"+ '\ud800' + message")], "mailbox: document '0': .*its text .*surrogate"),
        ([("id=str(number)", r"id='\udc00'")], "mailbox: document '.*its id .*surrogate"),
        ([(" text=", " split='test', text=")], "mailbox: document '0': its split is 'test'; it"),
    ],
)
def test_a_source_that_yields_something_else_is_refused(spec, tmp_path, edits, message):
    config = load(spec, *edits)
    with pytest.raises(DataError, match=message):
        build_corpus(config, tmp_path / "corpus", num_workers=1, say=lambda _: None)
    with pytest.raises(DataError, match=message):
        tokenizer.train([str(spec)], tmp_path / "words", vocab_size=300)


def test_the_same_source_twice_is_refused(spec):
    named = "{source: './mail.py:Mailbox', file: list.mbox, share: 1}"
    spec.write_text(f"sources: [{named}, {named.replace('1', '2')}]")
    with pytest.raises(ConfigError, match="is the same text as"):
        load(spec)
    spec.write_text(f"sources: [{named}, {named.replace('1}', '1, subjects: false}')}]")
    assert len(load(spec).sources) == 2


def test_what_is_in_the_identity_of_a_corpus(spec, tmp_path):
    config = load(spec)
    place = locate_corpus(config, tmp_path)
    assert str(tmp_path) not in json.dumps(corpus_origin(config))
    assert locate_corpus(load(spec, ("id=str", "# the first is 0\n id=str")), tmp_path) == place
    assert locate_corpus(load(spec, ("str(number)", "str(number + 1)")), tmp_path) != place
    (tmp_path / "list.mbox").write_text("From nobody\n\nother")
    assert locate_corpus(load(spec), tmp_path) != place
    (tmp_path / "list.mbox").unlink()
    with pytest.raises(DataError, match=r"list\.mbox: no such file or folder"):
        locate_corpus(load(spec), tmp_path)


def test_a_finished_corpus_is_found_whatever_the_origin_is_made_of(spec, tmp_path):
    origin = ORIGIN.format("{'parts': (1, 2), 'sizes': {1: 2.0}}")
    config = load(spec, ("    def doc", origin))
    for _ in range(2):
        build_corpus(config, tmp_path / "corpus", num_workers=1, say=lambda _: None)
    assert len(Corpus(tmp_path / "corpus" / "train"))


def assumed_for(config, root):
    """Return what a plan of a study of this corpus assumes."""
    study = Study(tiny_study({"name": "a", "phases": [clm(2)]}, corpus=config), root)
    return resolve(study, missing="placeholder").plan.assumed


def test_a_plan_says_which_code_of_a_source_was_edited(spec, tmp_path):
    config = load(spec)
    build_corpus(config, locate_corpus(config, tmp_path / "store"), num_workers=1, say=print)
    assert assumed_for(config, tmp_path) == ()
    assert assumed_for(load(spec, ("id=str", "# the first is 0\n id=str")), tmp_path) == ()
    before = shown(config.sources[0].source)
    assert assumed_for(load(spec, ("str(number)", "str(number + 1)")), tmp_path) == (
        f"corpus: mailbox, was built with other code of {before}; the corpus is built "
        "again, and its arms are trained again",
    )


def test_edited_code_is_seen_beside_a_file_that_a_folder_skips(spec, tmp_path):
    (pages := tmp_path / "pages").mkdir()
    (pages / "a.txt").write_text("a page of text " * 40)
    spec.write_text(spec.read_text().replace("}],", "}, ./pages],"))
    config = load(spec)
    build_corpus(config, locate_corpus(config, tmp_path / "store"), num_workers=1, say=print)
    (pages / ".DS_Store").write_text("x")
    assert assumed_for(config, tmp_path) == ()
    folder = locate_corpus(config, tmp_path / "store")
    folder.rename(folder.with_name("0" * 32))  # the name that another version gave it
    [said] = assumed_for(config, tmp_path)
    assert "other code" not in said
    [said] = assumed_for(load(spec, ("str(number)", "str(number + 1)")), tmp_path)
    assert f"other code of {shown(config.sources[0].source)}" in said


def test_a_tokenizer_is_trained_on_a_source_of_a_file(spec, tmp_path):
    out = tmp_path / "tokenizer"
    trained = tokenizer.train([str(spec)], out, vocab_size=300)
    assert trained.notes[0].startswith("read 8 documents")
    assert "already made" in tokenizer.train([str(spec)], out, vocab_size=300).notes[0]
    load(spec, ("self.subjects else", "not self.subjects else"))
    with pytest.raises(ConfigError, match="made from other sources or settings"):
        tokenizer.train([str(spec)], out, vocab_size=300)
    own = MAILBOX.replace("file: Path\n", f"file: Path = Path({str(tmp_path / 'list.mbox')!r})\n")
    (tmp_path / "lines.py").write_text(own)
    trained = tokenizer.train([f"{tmp_path}/lines.py:Mailbox"], tmp_path / "other", vocab_size=300)
    assert trained.notes[0].startswith("read 8 documents")


def test_an_installed_source_is_loaded_by_name(spec, tmp_path, monkeypatch):
    info = tmp_path / "mails-2.0.dist-info"
    info.mkdir()
    (tmp_path / "mails.py").write_text(MAILBOX)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mails\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("[biphasic.sources]\nmbox = mails:Mailbox\n")
    monkeypatch.syspath_prepend(tmp_path)
    spec.write_text("{sources: [{source: mbox, file: list.mbox}, books/]}")
    mails, books = load(spec).sources
    assert (mails.plugin.origin, mails.short_name) == ("mails 2.0", "mbox")
    assert (books.plugin, books.source) == (None, str(tmp_path / "books"))
    (tmp_path / "mbox").mkdir()
    with pytest.raises(ConfigError, match=r"also a file or folder; .* as \./mbox"):
        load(spec)
