"""Who leaves where, what confidence is, and that a policy survives its file."""

import json
import math

import pytest
import torch

from dynavit.models.cascade.policy import EVERYONE, NOBODY, ExitPolicy, FoundOn, confidence

LOGITS = torch.tensor([[2.0, 1.0, 0.5, -1.0], [0.0, 0.0, 0.0, 0.0], [9.0, -9.0, 3.0, 1.0]], dtype=torch.float64)


def probabilities(row):
    total = sum(map(math.exp, row))
    return [math.exp(z) / total for z in row]


DEFINITIONS = {
    "max_softmax": lambda p: max(p),
    "margin": lambda p: sorted(p)[-1] - sorted(p)[-2],
    "entropy": lambda p: 1 + sum(q * math.log(q) for q in p) / math.log(len(p)),
}


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_confidence_is_its_definition(kind):
    expected = [DEFINITIONS[kind](probabilities(row)) for row in LOGITS.tolist()]
    assert confidence(LOGITS, kind).tolist() == pytest.approx(expected, abs=1e-14)
    assert ExitPolicy((0.5, EVERYONE), kind).confidence(LOGITS).tolist() == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_confidence_lies_between_0_and_1_in_any_precision(kind):
    logits = torch.cat([torch.zeros(1, 6), 40 * torch.eye(6)])  # the entropy of six equal ones exceeds log 6 in float32
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        found = confidence(logits.to(dtype), kind)
        assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert (found >= 0).all() and (found <= 1).all()


def test_an_image_leaves_from_the_threshold_on():
    sure = confidence(LOGITS)
    at, above = float(sure[0]), math.nextafter(float(sure[0]), 1)
    assert ExitPolicy((at, EVERYONE)).leaves(LOGITS, 0).tolist() == [True, False, True]
    assert ExitPolicy((above, EVERYONE)).leaves(LOGITS, 0).tolist() == [False, False, True]


@pytest.mark.parametrize(("threshold", "leaves"), [(0.0, True), (EVERYONE, True), (1.01, False), (NOBODY, False)])
@pytest.mark.parametrize("kind", DEFINITIONS)
def test_0_lets_everyone_leave_and_more_than_1_nobody(threshold, leaves, kind):
    logits = torch.cat([torch.zeros(1, 10), 500 * torch.eye(10)])
    assert (ExitPolicy((threshold, EVERYONE), kind).leaves(logits, 0) == leaves).all()


def test_everyone_leaves_at_the_last_exit_even_with_broken_logits():
    broken = torch.full((2, 3), math.nan)
    policy = ExitPolicy((0.0, EVERYONE))
    assert policy.leaves(broken, 0).tolist() == [False, False]
    assert policy.leaves(broken, 1).tolist() == [True, True]


def full_policy():
    return ExitPolicy(
        (0.1 + 0.2, EVERYONE, NOBODY, EVERYONE),
        "margin",
        gmacs=(0.5, 1.5, 3.5, 4.0),
        milliseconds=(1.0, 3.0, 8.0, 9.0),
        batch_size=8,
        accuracy=(0.6, 0.7, 0.8, 0.81),
        shares=(0.5, 0.25, 0.25, 0.0),
        expected_accuracy=0.79,
        found_on=FoundOn("cifar10", "val", 3, 5000),
        found_by="at most 1.5 GMACs per image",
    )


def test_a_policy_survives_its_json():
    policy = full_policy()
    text = policy.to_json()
    assert ExitPolicy.from_json(text) == policy
    assert json.loads(text)["thresholds"] == [0.1 + 0.2, None, NOBODY, None]
    assert "Infinity" not in text and "NaN" not in text
    bare = ExitPolicy((0.5, EVERYONE))
    assert ExitPolicy.from_json(bare.to_json()) == bare


def test_expected_costs_are_means_over_the_exits():
    policy = full_policy()
    assert policy.expected_gmacs() == pytest.approx(0.25 + 0.375 + 0.875)
    assert policy.expected_milliseconds() == pytest.approx(0.5 + 0.75 + 2.0)
    assert ExitPolicy((EVERYONE,)).expected_gmacs() is None


def test_the_released_number_for_the_last_exit_is_understood():
    assert ExitPolicy((0.5, 1e8, -1e8)).thresholds == (0.5, 1e8, EVERYONE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thresholds": ()}, "one threshold for each exit, got none"),
        ({"thresholds": (math.nan, EVERYONE)}, "thresholds are numbers"),
        ({"thresholds": (math.inf, EVERYONE)}, "above 1 .1e\\+08, say. where no image shall leave"),
        ({"thresholds": (0.5, 0.5)}, "every image leaves at the last exit"),
        ({"confidence_kind": "max_softmix"}, "unknown confidence 'max_softmix'. Did you mean 'max_softmax'"),
        ({"gmacs": (1.0, 2.0, 3.0)}, "gmacs has one finite number for each of the 2 exits"),
        ({"accuracy": (0.5, math.nan)}, "accuracy has one finite number"),
        ({"shares": (1.0,)}, "shares has one finite number"),
        ({"milliseconds": (1.0, 2.0)}, "only with the batch size"),
        ({"batch_size": 8}, "only with the batch size"),
    ],
)
def test_mistakes_are_explained(options, message):
    with pytest.raises(ValueError, match=message):
        ExitPolicy(**({"thresholds": (0.5, EVERYONE)} | options))


def test_a_policy_for_another_cascade_is_refused():
    policy = ExitPolicy((0.5, EVERYONE))
    policy.check_fits(2)
    with pytest.raises(ValueError, match="for 2 exits, the cascade has 3"):
        policy.check_fits(3)
    for exit in (-1, 2):
        with pytest.raises(ValueError, match=f"no exit {exit + 1}: the policy knows exits 1 to 2"):
            policy.leaves(LOGITS, exit)
    with pytest.raises(ValueError, match="unknown confidence"):
        confidence(LOGITS, "luck")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not an exit policy"),
        ("[1, 2]", "not an exit policy"),
        ("{}", "thresholds is missing"),
        ('{"thresholds": 3}', "not an exit policy"),
        ('{"thresholds": [0.5, null], "colour": 1}', "colour"),
        ('{"thresholds": [0.5, null], "found_on": {"data": "digits"}}', "found_on.(samples|seed|split) is missing"),
        ('{"thresholds": [0.5, 0.5]}', "every image leaves at the last exit"),
    ],
)
def test_files_that_hold_no_policy_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        ExitPolicy.from_json(text)
