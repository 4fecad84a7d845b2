"""One exit at a time: batches may be cut, shuffled and joined; predict lets images leave and gives the same answers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dynavit
from dynavit.models.cascade.policy import ExitPolicy
from dynavit.models.cascade.state import ExitState
from models.cascade.test_model import build, images

LAST = float("-inf")
CASCADES = {shape: build(shape) for shape in ("two square grids", "wide images, odd grids", "four exits")}
ANY_CASCADE = st.sampled_from(sorted(CASCADES))


def close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def count_exits(cascade, monkeypatch_list):
    """Sizes of the batches that each exit was run on."""
    return [
        exit.register_forward_hook(lambda module, inputs, output, at=at: monkeypatch_list.append((at, len(inputs[0]))))
        for at, exit in enumerate(cascade.exits)
    ]


@settings(max_examples=15, deadline=None)
@given(ANY_CASCADE, st.integers(1, 6), st.data())
@torch.no_grad()
def test_any_part_of_a_batch_in_any_order_goes_on_as_before(shape, batch, data):
    cascade, x = CASCADES[shape], images(shape, batch)
    wanted = cascade(x)
    state, places = cascade.begin(x), torch.arange(batch)
    for at, whole in enumerate(wanted):
        assert (state.exit, len(state)) == (at, len(places))
        logits, state = cascade.step(state)
        close(logits, whole[places])
        index = data.draw(st.lists(st.integers(0, len(places) - 1), min_size=1, max_size=5))
        index = data.draw(st.sampled_from([index, torch.tensor(index), slice(index[0], None)]))
        state, places = state[index], places[index]
    assert state.exit == len(cascade.exits)


@settings(max_examples=15, deadline=None)
@given(ANY_CASCADE, st.lists(st.integers(1, 3), min_size=1, max_size=4), st.randoms())
@torch.no_grad()
def test_batches_that_wait_for_the_same_exit_can_be_joined(shape, sizes, random):
    cascade, x = CASCADES[shape], images(shape, sum(sizes))
    wanted = cascade(x)
    states, order = [cascade.begin(part) for part in x.split(sizes)], torch.arange(len(x)).split(sizes)
    for whole in wanted:
        stepped = [cascade.step(state) for state in states]
        close(torch.cat([logits for logits, _ in stepped]), whole[torch.cat(order)])
        joined, places = ExitState.concatenate([state for _, state in stepped]), torch.cat(order)
        shuffled = torch.tensor(random.sample(range(len(x)), len(x)))
        cut = random.randint(1, len(x))
        states = [part for part in (joined[shuffled[:cut]], joined[shuffled[cut:]]) if len(part)]
        order = [part for part in (places[shuffled[:cut]], places[shuffled[cut:]]) if len(part)]


@settings(max_examples=40, deadline=None)
@given(
    ANY_CASCADE,
    st.integers(0, 9),
    st.lists(st.floats(0, 1.1), min_size=3, max_size=3),
    st.sampled_from(["max_softmax", "margin", "entropy"]),
    st.integers(0, 5),
)
@torch.no_grad()
def test_predict_gives_what_running_everything_and_selecting_gives(shape, batch, thresholds, kind, seed):
    cascade, x = CASCADES[shape], images(shape, batch, seed)
    exits = len(cascade.exits)
    policy = ExitPolicy((*thresholds[: exits - 1], LAST), confidence_kind=kind)
    found = cascade.predict(x, policy)
    every = cascade(x)
    assert len(found) == batch
    for i in range(batch):
        sure = [policy.confidence(logits[i : i + 1]).item() for logits in every]
        if any(abs(one - threshold) < 1e-9 for one, threshold in zip(sure, policy.thresholds, strict=True)):
            continue
        at = next(k for k in range(exits) if sure[k] >= policy.thresholds[k])
        assert found.exit[i] == at
        assert found.labels[i] == every[at][i].argmax()
        assert found.confidence[i].item() == pytest.approx(sure[at], abs=1e-11)


@pytest.mark.parametrize("batch", [1, 4])
def test_nobody_goes_further_than_needed(batch):
    cascade, x, ran = build("four exits"), images("four exits", batch), []
    count_exits(cascade, ran)
    assert cascade.predict(x, ExitPolicy((0.0, 0.0, 0.0, LAST))).exit.tolist() == [0] * batch
    assert ran == [(0, batch)]
    ran.clear()
    assert cascade.predict(x, ExitPolicy((1.01, 1.01, 1.01, LAST))).exit.tolist() == [3] * batch
    assert ran == [(at, batch) for at in range(4)]


def test_only_unsure_images_go_on():
    cascade, x, ran = build("four exits"), images("four exits", 40), []
    with torch.no_grad():
        sure = torch.stack([logits.softmax(-1).amax(-1) for logits in cascade(x)])
    thresholds = [row.median().item() + 1e-6 for row in sure[:3]]
    count_exits(cascade, ran)
    found = cascade.predict(x, ExitPolicy((*thresholds, LAST)))
    waiting = [int((found.exit >= at).sum()) for at in range(4)]
    assert ran == list(enumerate(waiting))
    assert waiting == sorted(waiting, reverse=True) and 0 < waiting[3] < waiting[1] < 40


def test_predict_without_images_runs_nothing():
    cascade, ran = build("two square grids"), []
    count_exits(cascade, ran)
    found = cascade.predict(images("two square grids", 0), ExitPolicy((0.5, LAST)))
    assert len(found) == 0 and found.labels.dtype == found.exit.dtype == torch.long and not ran


def test_predict_keeps_no_graph_and_confidence_in_float32():
    cascade = dynavit.create_model("dvt_vit_digits").eval()
    found = cascade.predict(torch.randn(3, 3, 8, 8), ExitPolicy((0.5, LAST)))
    assert not found.confidence.requires_grad and found.confidence.dtype == torch.float32
    half = cascade.bfloat16().predict(torch.randn(3, 3, 8, 8).bfloat16(), ExitPolicy((0.5, LAST)))
    assert half.confidence.dtype == torch.float32


def test_gradients_flow_through_steps():
    cascade, x = build("two square grids"), images("two square grids")
    _, state = cascade.step(cascade.begin(x))
    logits, _ = cascade.step(ExitState.concatenate([state[[1]], state[[0, 2]]]))
    logits.square().sum().backward()
    stepped = [parameter.grad.clone() for parameter in cascade.exits[0].blocks.parameters()]
    cascade.zero_grad()
    cascade(x)[1].square().sum().backward()
    for one, other in zip(stepped, cascade.exits[0].blocks.parameters(), strict=True):
        close(one, other.grad)


# --- refusals


def test_predict_refuses_training_mode_and_other_peoples_policies():
    cascade, x = build("two square grids"), images("two square grids")
    with pytest.raises(ValueError, match="3 exits, the cascade has 2"):
        cascade.predict(x, ExitPolicy((0.5, 0.5, LAST)))
    with pytest.raises(ValueError, match="for evaluation: call eval"):
        cascade.train().predict(x, ExitPolicy((0.5, LAST)))


@torch.no_grad()
def test_states_that_do_not_fit():
    cascade, x = build("two square grids"), images("two square grids")
    begun = cascade.begin(x)
    _, first = cascade.step(begun)
    _, last = cascade.step(first)
    with pytest.raises(ValueError, match="passed all 2 exits"):
        cascade.step(last)
    with pytest.raises(ValueError, match="same exit can be joined; these wait for exit 1, exit 2"):
        ExitState.concatenate([begun, first])
    with pytest.raises(ValueError, match="none"):
        ExitState.concatenate([])
    _, without = cascade_without_reuse().step(begun)
    with pytest.raises(ValueError, match="different cascades"):
        ExitState.concatenate([first, without])
    for index in (1, torch.tensor(1)):
        with pytest.raises(ValueError, match="stays a batch; got the number"):
            first[index]


def cascade_without_reuse():
    return build("two square grids", feature_reuse=False, relation_reuse=False)
