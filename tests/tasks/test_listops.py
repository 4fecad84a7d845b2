"""ListOps as a task: counts by definition, the ladder beside every result, predictions of files, and one real training."""

import math
from types import SimpleNamespace

import pytest
import torch

import dynavit
from dynavit.analysis.statistics import wilson_interval
from dynavit.common.batch import Batch
from dynavit.common.data import LoaderOptions
from dynavit.data.config import AugmentConfig, DataConfig
from dynavit.data.listops.grammar import IDS, TOKENS, tokenise
from dynavit.data.open import open_data
from dynavit.tasks.listops import ListOps

LADDER = [{"name": "majority", "accuracy": 0.2}, {"name": "root operator", "accuracy": 0.4}]


class Table(torch.nn.Module):
    """Logits by the number that stands behind the first token."""

    def __init__(self, logits):
        super().__init__()
        self.logits = logits

    def forward(self, ids, mask):
        return self.logits[ids[:, 1]]


@pytest.fixture
def samples():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(40, 10, generator=generator, dtype=torch.float64)
    targets = torch.randint(10, (40,), generator=generator)
    first = torch.randint(11, 15, (40,), generator=generator)
    first[7] = IDS["3"]  # a row that is a single digit
    return logits, targets, first


def evaluated(samples, parts):
    """An evaluator for each list of rows, as processes have them, and then their totals joined."""
    logits, targets, first = samples
    task = ListOps(Table(logits), LADDER)
    evaluators = []
    for rows in parts:
        evaluator = task.evaluator()
        ids = torch.stack([first[rows], torch.tensor(rows)], 1)
        mask = torch.ones_like(ids, dtype=torch.bool)
        evaluator.update(Batch({"ids": ids, "mask": mask}, targets[rows], torch.tensor(rows), len(rows), len(rows)))
        evaluators.append(evaluator)
    whole = evaluators[0]
    for other in evaluators[1:]:
        whole.totals = {name: value + other.totals[name] for name, value in whole.totals.items()}
    return whole


def test_every_number_is_its_definition(samples):
    logits, targets, first = samples
    found = evaluated(samples, [list(range(40))])
    right = [int(row.argmax()) == int(target) for row, target in zip(logits, targets, strict=True)]
    loss = -sum(float(row.log_softmax(-1)[target]) for row, target in zip(logits, targets, strict=True)) / 40
    assert dict(found.results()) == pytest.approx({"loss": loss, "accuracy": sum(right) / 40}, abs=1e-12)
    details = found.details()
    assert details["interval"] == list(wilson_interval(sum(right), 40)) and details["ladder"] == LADDER
    assert details["labels"] == "".join(map(str, targets.tolist()))
    assert details["predictions"] == "".join(str(int(row.argmax())) for row in logits)
    for entry in details["by_root"]:
        own = [ok for ok, token in zip(right, first.tolist(), strict=True) if TOKENS[token] == entry["root"]]
        assert (entry["samples"], entry["accuracy"]) == (len(own), sum(own) / len(own))
    assert [entry["root"] for entry in details["by_root"]] == ["[MIN", "[MAX", "[MED", "[SM", "3"]
    assert list(found.notes()) == ["for comparison: majority 20.0%, root operator 40.0%"]


def test_rows_are_in_order_however_they_were_shared(samples):
    whole = evaluated(samples, [list(range(40))])
    shared = evaluated(samples, [list(range(20, 40)), list(range(5)), list(range(5, 20))])
    assert shared.details() == whole.details()
    assert dict(shared.results()) == pytest.approx(dict(whole.results()), abs=1e-12)


def test_rows_without_an_answer_are_wrong(samples):
    logits, targets, _ = samples
    logits[3, int(targets[3])] = math.inf
    found = evaluated(samples, [list(range(40))])
    assert dict(found.results())["not_finite"] == 1 and found.details()["predictions"][3] == "-"
    assert next(iter(found.notes())).startswith("1 of 40 rows have logits that are not finite")


def test_tables_put_the_model_on_the_ladder(samples):
    found = evaluated(samples, [list(range(40))])
    result = {**dict(found.results()), **found.details()}
    (_, _, rungs), (_, _, roots) = ListOps.tables(result)
    low, high = result["interval"]
    assert rungs[:2] == [["majority", "20.0%"], ["root operator", "40.0%"]]
    assert rungs[2] == ["this model", f"{result['accuracy']:.1%} [{low:.1%}, {high:.1%}]"] and len(roots) == 5


def small(**options):
    return open_data("listops", None, DataConfig(options={"train": 30, "val": 10, "test": 10, **options}))


def test_the_model_is_told_about_the_data():
    data = small(pad_to=256)
    assert ListOps.model_options(data, None) == {"num_classes": 10, "vocab_size": 17, "max_len": 256}
    build = lambda **options: ListOps.build(dynavit.create_model("test_sequence", **options), data, None)  # noqa: E731
    with pytest.raises(ValueError, match="padded to 256 tokens, but the model has positions for max_len=40"):
        build(vocab_size=17)
    with pytest.raises(ValueError, match="17 ids, the model vocab_size=12"):
        build(max_len=256)
    assert build(max_len=256, vocab_size=17).ladder == data.describe()["ladder"]
    with pytest.raises(ValueError, match="and digits holds others"):
        ListOps.check_data(SimpleNamespace(name="digits"))


def test_files_are_read_or_refused_with_their_name(tmp_path):
    task, facts = ListOps(Table(torch.eye(20)[:, :10])), {"width": 6, "classes": list("0123456789")}
    file = tmp_path / "expression.txt"
    file.write_text("( ( ( [MAX 4 ) 2 ) ] )\n")
    inputs = task.read_input(file, facts)
    assert inputs["ids"].tolist() == [[*tokenise("[MAX 4 2 ]"), 0, 0]] and inputs["mask"].sum() == 4
    assert task.answer(inputs, facts, 1)["label"] == "5"  # Table's row of the id of 4
    for text, message in (("[MAX 4 ", "never closed"), ("[MAX 1 2 3 4 5 ]", "7 tokens, but the model reads 6")):
        file.write_text(text)
        with pytest.raises(ValueError, match=f"expression.txt: .*{message}"):
            task.read_input(file, facts)


def trained(steps, **options):
    """The mean loss of the last 20 of so many steps of a tiny model with LayerNorm."""
    data = small(train=2000, min_length=10, max_length=40, max_depth=3, seed=1)
    how = LoaderOptions(train=True, batch_size=32, augment=AugmentConfig(), config=DataConfig())
    torch.manual_seed(0)
    task = ListOps.build(dynavit.create_model("test_sequence", **ListOps.model_options(data, None)), data, None)
    optimiser, losses = torch.optim.AdamW(task.parameters(), lr=2e-3), []
    loader = task.loader(data, "train", how)
    for epoch in range(-(-steps // loader.steps)):
        for (batch,) in loader.epoch(epoch):
            loss = task(batch)["loss"]
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    return sum(losses[steps - 20 : steps]) / 20


@pytest.mark.slow
def test_a_short_training_beats_the_majority_class():
    """Whose best guess, the labels' own frequencies, has a loss of 2.15 or more."""
    assert trained(200) < 2.15


def test_a_shorter_training_learns():
    assert trained(20) < 2.6
