"""What people write: pyright checks it in strict mode (`make types`)."""

from pathlib import Path

import biphasic
from biphasic.errors import BiphasicError, DataError

encoder = biphasic.load("my-encoder", precision="bf16", device="cpu")
width: int = encoder.encode(["a", "b"], normalize=True).shape[1]
rows = encoder.predict([("a", "b")], columns=["x", "y"]).rows
label: object = rows[0]["label"]
token, chance = encoder.fill_mask(f"a {encoder.mask_token}", top=3).candidates[0][0]
percent: float = 100 * chance
accuracy: float = encoder.score([("good", "bad")], reading="mlm").accuracy
address: str | None = encoder.push("me/mine", private=True).address
state: Path = biphasic.pretrain({"model": "pico"}, corpus="texts.jsonl", quiet=True)
merged: Path = biphasic.merge_models("a", "b", "c", weight=0.3, method="spherical")
exported: Path = biphasic.export_model(state, "out", format="onnx")
adapted: Path = biphasic.adapt("decoder", "adapted", corpus="texts.jsonl", steps=2)
made = biphasic.finetune(state, "sc:reviews", "sorter", workers=2, overrides=["max_steps=2"])
test: dict[str, float] = made.test
score = biphasic.evaluate(state, "sc:reviews", seeds=[0, 1], convention="paper").estimate
if score is not None:
    mean: float = score.mean
for each in biphasic.evaluate_all(state, ["sc:reviews", Path("task.yaml")]):
    metric: str = each.metric
benchmark: str = repr(biphasic.run_mteb("my-encoder", ["STS17"], "out"))
hours: float = biphasic.estimate("recipe.yaml", devices=8, device="h200").times[0].hours
try:
    number: int = biphasic.predict("sorter", ["a"], quiet=True).num_examples
    seconds: float = biphasic.encode("my-encoder", "texts.jsonl", "vectors.npy").seconds
except (DataError, BiphasicError) as error:
    message: str = str(error)
files: tuple[tuple[str, int], ...] = biphasic.push("out", "me/mine").files
built: Path = biphasic.corpus.build(["texts.jsonl"], out="corpus", shares=[1.0]).folder
documents: int = biphasic.corpus.inspect(built).summaries["train"].documents
biphasic.corpus.verify(built)
biphasic.corpus.merge([built, "other"], "both")
mined = biphasic.pairs.mine(biphasic.pairs.build(["p.csv"], out="p").folder, "bm25", "mined")
query: str = biphasic.pairs.inspect(mined.folder).pairs.pair(0).query
biphasic.pairs.teach("mined", "teacher", "taught", width=64)
words: int = biphasic.tokenizer.train(["texts.jsonl"], "words").vocab_size
yaml: str = biphasic.task.show("sst2")
token: str = biphasic.tokenizer.check("words").special[0][1]
found = biphasic.plugin.list().sentences + biphasic.plugin.check("mine.py").sentences
was_done: bool = biphasic.job.run(biphasic.job.show("identity").id).was_done
findings = biphasic.site.check(biphasic.site.init(partition="cpu")).frame
planned = biphasic.plan("study.yaml", rate=1e12, overrides=["title=Mine"])
mermaid: str = planned.graph()
lines: tuple[str, ...] = biphasic.diff("a.yaml", "b.yaml").sentences
properties: object = biphasic.schema()["properties"]
registered: str = biphasic.register("study.yaml", spread=0.5).to_markdown()
kinds = [item.kind for item in biphasic.jobs("study.yaml").items]
tuned = biphasic.tune("study.yaml", by="arm", rates=[1e-3], dry_run=True).planned
outcome = biphasic.run_study("study.yaml", workers=2, threads=1, per_gpu=1)
report: Path = biphasic.report_study(outcome.folder)
phase: str = biphasic.status("mine", root="runs").phase
was_running: bool = biphasic.cancel("mine")
requests: tuple[str, ...] = biphasic.retry("mine", ["a job"]).requests
damage: tuple[str, ...] = biphasic.verify("mine").damage
is_deleted: bool = biphasic.clean(delete=False).is_deleted
analysis = biphasic.analyze("runs/mine", convention="standard", dataset=["MNLI"])
verdicts = [one.verdict for one in biphasic.compare("runs/mine").results()]
claims = [one.claim.id for one in biphasic.claims(paper=True).results]
drawn: Path = biphasic.figures("runs/mine", "out", formats=["svg"]).out
theirs: Path = biphasic.paper("out", formats=["md"]).out
summary: str = f"{biphasic.__version__}: {len(analysis.frame)} of {analysis.to_json()['cells']}"


def readme() -> None:
    state = biphasic.pretrain(
        {
            "model": "nano",
            "phases": [
                {"objective": "clm", "steps": 200},
                {"objective": "mlm", "steps": 600, "mlm_probability": 0.4},
            ],
            "learning_rate": {"peak": 2e-3, "warmup_steps": 40, "decay_steps": 80},
        }
    )
    result = biphasic.evaluate(state, "pydocs-sc", learning_rates=[3e-4, 1e-3], seeds=[0, 1, 2])
    if result.estimate is not None:  # None if scores are missing
        print(result.metric, result.estimate.mean, result.estimate.half_width)  # percent points
