"""The claims of arXiv:2507.00994 (C01 to C28) and of a blog post about it (B01), in our words.

Verdicts are not stored here: they are computed from the table. Where a sentence names a size, a
masking rate or a step of the paper, the check uses its equivalent in any study: the middle size,
the masking rate nearest to 0.4, a share of the training.
"""

# Each claim stays on a few lines.
# fmt: off

from collections.abc import Iterator

from biphasic.analysis.claims import Check, Table, bounds, claim, nearest

MLM, CLM = {"objective": "MLM"}, {"objective": "CLM"}
FROM_MLM, FROM_CLM = {"start": "MLM"}, {"start": "CLM"}
NEAR_40, AT_40 = nearest(0.4), nearest(0.4, within=0.05)
CONTINUED = bounds(above=0)
LOWEST_RATE, HIGHEST_RATE = {"mask_rate": "smallest"}, {"mask_rate": "largest"}
AT_END, HALFWAY = {"continued_steps": "largest"}, {"continued_steps": "middle"}
CLM_AT_END, MLM_AT_END = {**FROM_CLM, **AT_END}, {**FROM_MLM, **AT_END}

@claim("C01", "Pretraining with MLM generally ends up better than pretraining with CLM over the "
       "four task categories.",
       source="Abstract; section 3, first paragraph; Figure 2")
def c01(table: Table) -> Iterator[Check]:
    yield table.compare({**MLM, "mask_rate": NEAR_40}, CLM, "significantly higher", at_least=8 / 12,
        steps="largest")
    yield table.compare({**MLM, "mask_rate": NEAR_40}, CLM, "significantly lower", at_most=1 / 12,
        steps="largest")

@claim("C02", "The deficit of CLM against MLM is clear on SC and QA at every model size, and QA is "
       "where it is largest.",
       source="Section 3, first paragraph; Figure 2")
def c02(table: Table) -> Iterator[Check]:
    yield table.compare(MLM, CLM, "significantly higher", steps="largest", task=["SC", "QA"])
    yield table.best("task", "QA", gap=(MLM, CLM), steps="largest", mask_rate=NEAR_40)

@claim("C03", "On SC the gap between MLM and CLM grows with model size.",
       source="Section 3, first paragraph; Figure 2")
def c03(table: Table) -> Iterator[Check]:
    yield table.trend("size", "increases", gap=(MLM, CLM), steps="largest", task="SC")

@claim("C04", "On IR the gap between MLM and CLM shrinks with model size.",
       source="Section 3, paragraphs 1 and 3; Figure 2")
def c04(table: Table) -> Iterator[Check]:
    yield table.trend("size", "decreases", gap=(MLM, CLM), steps="largest", task="IR")

@claim("C05", "On TC, CLM models match MLM models at every size.",
       source="Section 3, 'CLM models can perform competitively'; Figure 2",
       reading="'Match' is read as 'MLM is nowhere significantly higher', at every masking rate. "
               "That is arguable: it lets CLM be higher, and on the published table wide intervals "
               "count as a match.")
def c05(table: Table) -> Iterator[Check]:
    yield table.compare(MLM, CLM, "not significantly higher", steps="largest", task="TC")

@claim("C06", "At 610M, CLM beats MLM on TC by a substantial margin.",
       source="Section 3, 'CLM models can perform competitively'; Figure 2")
def c06(table: Table) -> Iterator[Check]:
    yield table.compare(CLM, MLM, "significantly higher", steps="largest", size="middle", task="TC")
    yield table.compare(CLM, MLM, "significantly higher", weaker=True, steps="largest",
        size="middle", task="TC", mask_rate=NEAR_40)

@claim("C07", "No masking rate is best everywhere; the best rate depends on size and task, and "
       "differs even between datasets of one category.",
       source="Section 3, 'no universally optimal masking ratio', footnote 9; Figure 3; Appendix "
              "C.1")
def c07(table: Table) -> Iterator[Check]:
    yield table.varies("size", "task", best_level="mask_rate", steps="largest", objective="MLM")
    yield table.varies("dataset", best_level="mask_rate", at_least=1 / 2, steps="largest",
        objective="MLM", dataset="each")

@claim("C08", "Larger models tend to prefer higher masking rates.",
       source="Section 3, 'no universally optimal masking ratio'; Figure 3")
def c08(table: Table) -> Iterator[Check]:
    yield table.trend("size", "never decreases", best_level="mask_rate", steps="largest",
        objective="MLM")
    yield table.compare({"size": "largest"}, {"size": "smallest"}, "not lower",
        best_level="mask_rate", weaker=True, steps="largest", objective="MLM")

@claim("C09", "IR prefers higher masking rates at every model size.",
       source="Section 3, 'no universally optimal masking ratio'; Figure 3; section 8",
       reading="Lenient. On the average over datasets the score rises from each masking rate to "
               "the next; on single datasets it is enough that the highest rate is not "
               "significantly below the lowest. There, rises in between are not required, and "
               "MS MARCO does not rise monotonically.")
def c09(table: Table) -> Iterator[Check]:
    yield table.trend("mask_rate", "increases", steps="largest", objective="MLM", task="IR")
    yield table.compare(HIGHEST_RATE, LOWEST_RATE, "not significantly lower", steps="largest",
        objective="MLM", task="IR", dataset="each")

@claim("C10", "On the token-level tasks TC and QA the small model does better with low masking "
       "rates.",
       source="Section 3, 'no universally optimal masking ratio'; Figure 3")
def c10(table: Table) -> Iterator[Check]:
    yield table.compare(LOWEST_RATE, HIGHEST_RATE, "significantly higher", needs={"size": 2},
        steps="largest", size="smallest", objective="MLM", task=["TC", "QA"])
    yield table.compare(LOWEST_RATE, HIGHEST_RATE, "higher", needs={"size": 2}, weaker=True,
        steps="largest", size="smallest", objective="MLM", task=["TC", "QA"])

@claim("C11", "At 610M and 1B the TC and QA curves over masking rate are U-shaped (better at both "
       "ends).",
       source="Section 3, 'no universally optimal masking ratio'; section 8 (TC only); Figure 3")
def c11(table: Table) -> Iterator[Check]:
    yield table.trend("mask_rate", "dips in the middle", needs={"size": 3}, steps="largest",
        size="middle", objective="MLM", task=["TC", "QA"])
    yield table.trend("mask_rate", "dips in the middle", needs={"size": 3}, steps="largest",
        size="largest", objective="MLM", task=["TC", "QA"])

@claim("C12", "40% masking is a strong overall compromise at 610M.",
       source="Section 3, 'no universally optimal masking ratio'",
       reading="Strictly, 40 % has the best mean rank and the best mean over the tasks. The weaker "
               "form is lenient: it only requires that 40 % is the worst rate on no task, and it "
               "alone carries the verdict 'partly'.")
def c12(table: Table) -> Iterator[Check]:
    yield table.best("mask_rate", AT_40, across="task", by="mean rank", steps="largest",
        size="middle", objective="MLM")
    yield table.best("mask_rate", AT_40, across="task", steps="largest", size="middle",
        objective="MLM")
    yield table.worst("mask_rate", AT_40, is_not=True, weaker=True, steps="largest", size="middle",
        objective="MLM")

@claim("C13", "Where a smaller model tops a larger one on TC (210M above 610M), the difference is "
       "not statistically significant.",
       source="Section 3, footnote 10")
def c13(table: Table) -> Iterator[Check]:
    yield table.trend("size", "never significantly decreases", steps="largest",
        objective=["MLM", "CLM"], task="TC")

@claim("C14", "Early in training, up to step 10,000 of 42,000, CLM is ahead of MLM on SC and QA.",
       source="Section 3, 'CLM is more data-efficient'; Figure 4")
def c14(table: Table) -> Iterator[Check]:
    yield table.compare(CLM, MLM, "higher", finished=False, progress=bounds(at_most=0.24),
        task=["SC", "QA"])

@claim("C15", "On IR CLM is ahead of MLM up to step 20,000 of 42,000.",
       source="Section 3, 'CLM is more data-efficient'; Figure 4")
def c15(table: Table) -> Iterator[Check]:
    yield table.compare(CLM, MLM, "higher", finished=False, progress=bounds(at_most=0.48),
        task="IR")

@claim("C16", "On TC CLM stays ahead of MLM until the end of training.",
       source="Section 3, 'CLM is more data-efficient'; Figure 4")
def c16(table: Table) -> Iterator[Check]:
    yield table.compare(CLM, MLM, "higher", finished=False, task="TC")
    yield table.compare(CLM, MLM, "higher", steps="largest", size="middle", task="TC",
        mask_rate=NEAR_40)

@claim("C17", "Later in training MLM catches up and often overtakes, while CLM gains little more.",
       source="Section 3, 'CLM is more data-efficient'; Figure 4",
       reading="'Overtakes' is read as 'significantly higher on SC, QA and IR at step 40,000', and "
               "'gains little more' as 'CLM gains less than MLM from step 10,000 to step 40,000, "
               "on every task'. Both are arguable: TC is left out of the first, and the second "
               "does not define 'little'.")
def c17(table: Table) -> Iterator[Check]:
    yield table.compare(MLM, CLM, "significantly higher", finished=False,
        progress=nearest(0.952, within=0.1), task=["SC", "QA", "IR"])
    yield table.compare(MLM, CLM, "higher",
        gap=({"progress": nearest(0.952, within=0.1)}, {"progress": nearest(0.238, within=0.1)}),
        finished=False)

@claim("C18", "Combining CLM then MLM consistently improves over MLM-only training at the same "
       "budget.",
       source="Section 4; Figure 6")
def c18(table: Table) -> Iterator[Check]:
    yield table.compare({"objective": "CLM+MLM"}, MLM, "higher", clm_share=bounds(at_most=0.8))

@claim("C19", "Under a fixed training budget the best result comes from CLM followed by MLM, not "
       "from either objective alone.",
       source="Abstract; section 4; Figure 6")
def c19(table: Table) -> Iterator[Check]:
    yield table.best("clm_share", bounds(above=0, below=1), objective=["CLM", "MLM", "CLM+MLM"],
        mask_rate=NEAR_40)

@claim("C20", "The split of 25% CLM and 75% MLM reliably beats 100% MLM.",
       source="Section 4; Figure 6")
def c20(table: Table) -> Iterator[Check]:
    yield table.compare({"clm_share": 0.25}, {"clm_share": 0}, "higher",
        objective=["MLM", "CLM+MLM"])

@claim("C21", "Even with 75% of the budget on CLM, results stay comparable to 100% MLM.",
       source="Section 4; Figure 6")
def c21(table: Table) -> Iterator[Check]:
    yield table.compare({"clm_share": 0.75}, {"clm_share": 0}, "not significantly lower",
        objective=["MLM", "CLM+MLM"])

@claim("C22", "After 22,000 steps of continued pretraining with MLM, the model that began as CLM "
       "is consistently better than the one that began as MLM, significantly so on SC.",
       source="Section 5, first result paragraph; Figure 8; abstract")
def c22(table: Table) -> Iterator[Check]:
    yield table.compare(CLM_AT_END, MLM_AT_END, "higher", continued_steps=CONTINUED)
    yield table.compare(CLM_AT_END, MLM_AT_END, "significantly higher", continued_steps=CONTINUED,
        task="SC")

@claim("C23", "Continuing the CLM model with MLM keeps its TC advantage and effectively closes the "
       "QA and IR gaps.",
       source="Section 5, first result paragraph; Figure 8")
def c23(table: Table) -> Iterator[Check]:
    yield table.compare({**FROM_CLM, "continued_steps": CONTINUED},
        {**FROM_CLM, "continued_steps": 0}, "not significantly lower", task="TC")
    yield table.compare(CLM_AT_END, MLM_AT_END, "significantly higher", continued_steps=CONTINUED,
        task="TC")
    yield table.compare(CLM_AT_END, MLM_AT_END, "not significantly lower",
        continued_steps=CONTINUED, task=["QA", "IR"])

@claim("C24", "Already at 12,000 continued steps of 22,000 the model that began as CLM broadly "
       "matches MLM throughout; better on TC and IR, comparable on SC, nearly on par on QA.",
       source="Section 5, second result paragraph; Figure 9")
def c24(table: Table) -> Iterator[Check]:
    clm, mlm, lengths = {**FROM_CLM, **HALFWAY}, {**FROM_MLM, **HALFWAY}, {"continued_steps": 2}
    yield table.compare(clm, mlm, "higher", needs=lengths, continued_steps=CONTINUED,
        task=["TC", "IR"])
    yield table.compare(clm, mlm, "not significantly different", needs=lengths,
        continued_steps=CONTINUED, task=["SC", "QA"])

@claim("C25", "Late in continued pretraining the curve of the model that began as CLM is steeper, "
       "while that of the one that began as MLM levels off, most visibly on SC.",
       source="Section 5, second result paragraph; Figure 9")
def c25(table: Table) -> Iterator[Check]:
    lengths = {"continued_steps": 2}
    yield table.compare(FROM_CLM, FROM_MLM, "higher", gap=(AT_END, HALFWAY), needs=lengths,
        continued_steps=CONTINUED)
    yield table.compare(AT_END, HALFWAY, "higher", needs=lengths, continued_steps=CONTINUED,
        start="CLM", task="SC")
    yield table.compare(AT_END, HALFWAY, "not higher", needs=lengths, continued_steps=CONTINUED,
        start="MLM", task="SC")

@claim("C26", "Fine-tuning after CLM is less sensitive to the learning rate than after MLM.",
       source="Abstract; section 3, 'CLM-based pretraining improves fine-tuning stability'; Figure "
              "5",
       reading="Sensitivity is the standard deviation of a seed's test scores over the learning "
               "rates, from the lowest to ten times the lowest. The paper's Figure 5 takes it over "
               "these rates and the seeds together.")
def c26(table: Table) -> Iterator[Check]:
    yield table.rate_spreads.compare(CLM, {**MLM, "mask_rate": NEAR_40}, "lower", steps="largest",
        size="middle")

@claim("C27", "CLM then MLM is less sensitive to the masking rate than MLM alone.",
       source="Section 4, 'CLM-based models exhibit lower sensitivity to masking ratio'; Figure 7",
       reading="Sensitivity is the standard deviation of a seed's test scores over the masking "
               "rates that both have. The paper's Figure 7 takes it over rates and seeds together.")
def c27(table: Table) -> Iterator[Check]:
    yield table.mask_rate_spreads.compare({"objective": "CLM+MLM"}, MLM, "lower")

@claim("C28", "Early in training, CLM is ahead of MLM also at equal training FLOPs.",
       source="Appendix D; Figure 10",
       reading="'Early' is up to step 10,000 of 42,000, as in C14. MLM is interpolated between its "
               "intermediate states, by the logarithm of their FLOPs.")
def c28(table: Table) -> Iterator[Check]:
    yield table.at_equal_flops.compare(CLM, {**MLM, "mask_rate": NEAR_40}, "higher",
        finished=False, progress=bounds(at_most=0.24))

@claim("B01", "The split of 50% CLM and 50% MLM often gives the best trade-off.",
       source="A blog post about the paper; compare section 4 and Figure 6")
def b01(table: Table) -> Iterator[Check]:
    yield table.best("clm_share", 0.5, most_often=True, objective=["CLM", "MLM", "CLM+MLM"],
        mask_rate=NEAR_40)
    yield table.best("clm_share", 0.5, at_least=1 / 4, weaker=True,
        objective=["CLM", "MLM", "CLM+MLM"], mask_rate=NEAR_40)
