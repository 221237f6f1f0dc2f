"""The `biphasic pairs` commands: build and inspect pairs of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from biphasic.cli.options import Copies, Quiet, Root, echo, progress_console

pairs_app = typer.Typer(
    help="Build and inspect pairs of texts for contrastive training.", no_args_is_help=True
)
_WIDTH = 160
_Tasks = Annotated[
    list[str] | None,
    typer.Option(
        "--task", help="Retrieval task whose training split gives pairs; repeat for several."
    ),
]


@pairs_app.command("build")
def pairs_build(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TABLE...",
            help="File of pairs (.jsonl, .csv, .tsv, .parquet) or hf:OWNER/NAME, with columns "
            "query (or anchor), positive, and optionally negatives and scores.",
        ),
    ] = None,
    *,
    out: Annotated[Path, typer.Option(help="Folder for the pairs.")],
    tasks: _Tasks = None,
    documents: Annotated[
        list[str] | None,
        typer.Option(
            help="Texts that give weak pairs (heading and paragraph, paragraph and next): a "
            "source as in 'corpus build'; repeat for several."
        ),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="Task that will judge: pairs with its texts, or nearly, are left out; repeat."
        ),
    ] = None,
    per_document: Annotated[int, typer.Option(min=1, help="Most weak pairs of a document.")] = 4,
    max_weak_pairs: Annotated[
        int | None, typer.Option(min=1, help="Most weak pairs of a source, drawn at random.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draw of weak pairs.")] = 0,
    root: Root = Path("runs"),
    copies: Copies = None,
    quiet: Quiet = False,
) -> None:
    """Build pairs; run again to resume after an interruption."""
    from biphasic.config import parse_config
    from biphasic.progress import say_on
    from biphasic.study import STORE
    from biphasic.tasks.pairs.build import PairsConfig, build_pairs, card_lines

    raw = {
        "tables": tables or (),
        "tasks": tasks or (),
        "documents": documents or (),
        "against": against or (),
        "per_document": per_document,
        "max_weak_pairs": max_weak_pairs,
        "seed": seed,
    }
    config = parse_config(PairsConfig, raw, where="pairs build")
    say = say_on(progress_console(quiet=quiet))
    pairs = build_pairs(config, out, store=root.resolve() / STORE, copies=copies, say=say)
    echo("\n".join(card_lines(pairs)))
    echo(f"pairs: {out}")


_From = Annotated[Path, typer.Argument(help="Folder made by 'biphasic pairs'.")]


@pairs_app.command("mine")
def pairs_mine(
    folder: _From,
    miner: Annotated[
        str,
        typer.Option(help="Folder or hub id of the embedding model that finds negatives, or bm25."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the pairs with negatives.")],
    negatives: Annotated[int, typer.Option(min=1, help="Most negatives of a pair.")] = 4,
    margin: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Most similarity of a negative, as a share of the positive's."
        ),
    ] = 0.95,
    depth: Annotated[int, typer.Option(min=1, help="Documents searched for each query.")] = 100,
) -> None:
    """Add hard negatives: documents that are similar to a query and are no answers to it."""
    from biphasic.data.pairs.folder import Pairs
    from biphasic.tasks.pairs.build import card_lines
    from biphasic.tasks.pairs.enrich import mine

    found = mine(Pairs(folder), miner, out, number=negatives, margin=margin, depth=depth)
    echo("\n".join(card_lines(found)))
    echo(f"pairs: {out}")


@pairs_app.command("teach")
def pairs_teach(
    folder: _From,
    teacher: Annotated[str, typer.Option(help="Folder or hub id of an embedding model.")],
    out: Annotated[Path, typer.Option(help="Folder for the pairs with the teacher's vectors.")],
    width: Annotated[
        int | None,
        typer.Option(
            min=1, help="Dimensions that are kept, the principal ones. Default: the teacher's."
        ),
    ] = None,
) -> None:
    """Add a teacher's vector of each text, for a phase with the objective 'distill'."""
    from biphasic.data.pairs.folder import Pairs
    from biphasic.tasks.pairs.build import card_lines
    from biphasic.tasks.pairs.enrich import teach

    echo("\n".join(card_lines(teach(Pairs(folder), teacher, out, width=width))))
    echo(f"pairs: {out}")


@pairs_app.command("inspect")
def pairs_inspect(
    folder: Annotated[Path, typer.Argument(help="Folder made by 'biphasic pairs build'.")],
    samples: Annotated[int, typer.Option(min=0, help="Pairs to show.")] = 3,
) -> None:
    """Show counts, what was left out, and some pairs; verify all hashes."""
    from biphasic.data.pairs.folder import Pairs
    from biphasic.tasks.pairs.build import card_lines

    pairs = Pairs(folder)
    echo("\n".join(card_lines(pairs)))
    for number in sorted({place * len(pairs) // samples for place in range(samples)}):
        pair = pairs.pair(number)
        echo(f"\npair {number:,} ({pair.source})")
        texts = {"query": [pair.query], "positive": [pair.positive], "negative": pair.negatives}
        for name, values in texts.items():
            for text in values:
                line = " ".join(text.split())
                echo(f"  {name}: {line[:_WIDTH]}{'...' * (len(line) > _WIDTH)}")
